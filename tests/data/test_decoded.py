from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from suffice.data.files import record
from suffice.data.images import Pictures, decoded
from suffice.errors import DataError

LABELS = [2, 0, 1]


def made(asked: list[int] | None = None, side: int = 2):
    def make() -> Pictures:
        if asked is not None:
            asked.append(1)
        return Pictures(LABELS, (np.full((3, side, side), 9 + i, np.uint8) for i in range(3)))

    return make


def only(home: Path) -> Path:
    (found,) = (home / "decoded").glob("*.safetensors")
    return found


def test_pictures_are_made_once_and_then_read(home: Path):
    asked: list[int] = []
    first = decoded("it", ["key"], 2, made(asked))
    again = decoded("it", ["key"], 2, made(asked))
    assert len(asked) == 1
    for found in (first, again):
        assert (found.images.dtype, tuple(found.images.shape)) == (torch.uint8, (3, 3, 2, 2))
        assert found.images[:, 0, 0, 0].tolist() == [9, 10, 11]
        assert (found.labels.dtype, found.labels.tolist()) == (torch.int64, LABELS)
    assert sorted(os.listdir(home / "decoded")) == [only(home).name, record(only(home)).name]


def test_the_file_is_plain_safetensors(home: Path):
    decoded("it", ["key"], 3, made(side=3))
    tensors = load_file(only(home))
    assert tensors["labels"].tolist() == LABELS
    assert tensors["images"].flatten(1).float().mean(dim=1).tolist() == [9, 10, 11]


def test_another_key_or_size_is_another_file(home: Path):
    for key, side in ((["a"], 2), (["b"], 2), (["b"], 1)):
        assert decoded("it", key, side, made(side=side)).images.shape[2:] == (side, side)
    assert len(list((home / "decoded").glob("it-*.safetensors"))) == 3


def test_what_was_kept_and_altered_is_refused(home: Path):
    decoded("it", ["key"], 2, made())
    content = bytearray(only(home).read_bytes())
    content[-1] ^= 1
    only(home).write_bytes(content)
    told = r"it-\w{16}\.safetensors is truncated or altered; delete it and run again to decode"
    with pytest.raises(DataError, match=told):
        decoded("it", ["key"], 2, made())
    only(home).unlink()
    assert decoded("it", ["key"], 2, made()).images[0, 0, 0, 0] == 9


def test_what_was_kept_and_cut_is_refused(home: Path):
    decoded("it", ["key"], 2, made())
    only(home).write_bytes(only(home).read_bytes()[:-3])
    with pytest.raises(DataError, match=r"cannot be read \(.*\); delete it and run again"):
        decoded("it", ["key"], 2, made())


def test_a_file_without_its_digest_is_refused(home: Path):
    decoded("it", ["key"], 2, made())
    record(only(home)).unlink()
    with pytest.raises(DataError, match=r"cannot be read \(.*No such file.*\); delete it and run"):
        decoded("it", ["key"], 2, made())


def test_an_error_midway_leaves_nothing(home: Path):
    def broken() -> Pictures:
        def pixels():
            yield np.zeros((3, 2, 2), np.uint8)
            raise DataError("the second is damaged.")

        return Pictures([0, 1], pixels())

    with pytest.raises(DataError, match="the second is damaged"):
        decoded("it", ["key"], 2, broken)
    assert not list((home / "decoded").iterdir())


def test_a_cache_that_cannot_be_written_is_told(home: Path):
    home.parent.mkdir()
    home.write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*/decoded/it-\w+\.safetensors .*; make"):
        decoded("it", ["key"], 2, made())


def test_progress_is_shown_where_there_is_a_console(home: Path):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    decoded("it", ["key"], 2, made(), console=console)
    assert "decoding it" in console.file.getvalue()
    assert "3/3" in console.file.getvalue()
