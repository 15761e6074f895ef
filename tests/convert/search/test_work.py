"""What is kept of a search."""

from __future__ import annotations

import pytest
import torch

from suffice.convert.search.scoring import Work
from suffice.errors import CheckpointError, ConfigError
from suffice.testing import assert_close


@pytest.mark.parametrize("where", ["folder", None])
def test_what_is_written_is_read(where, tmp_path):
    work = Work(where and tmp_path / where)
    assert work.read("scores/a b") is None
    assert work.tensors("fits/a b") is None
    work.write("scores/a b", [1, 2])
    work.keep("fits/a b", {"x": torch.ones(2)}, {"error": 0.5})
    assert work.read("scores/a b") == [1, 2]
    tensors, facts = work.tensors("fits/a b")
    assert_close(tensors["x"], torch.ones(2), "exact")
    assert facts == {"error": 0.5}
    names = sorted(path.name for path in tmp_path.rglob("a*"))
    assert names == (["a%20b.json", "a%20b.safetensors"] if where else [])


def test_a_folder_holds_one_search(tmp_path):
    asked = {"model": "a", "length": 4}
    Work(tmp_path / "x").claim(asked, resume=True)
    Work(tmp_path / "x").claim(asked, resume=True)
    with pytest.raises(ConfigError, match="holds a search already; go on with it by --resume, or"):
        Work(tmp_path / "x").claim(asked, resume=False)
    with pytest.raises(ConfigError, match="holds a search with another length; ask for the same"):
        Work(tmp_path / "x").claim(asked | {"length": 5}, resume=True)


def test_damaged_files_are_told_of(tmp_path):
    (tmp_path / "latency.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"latency.json cannot be read .*; delete it, and it"):
        Work(tmp_path).read("latency")
