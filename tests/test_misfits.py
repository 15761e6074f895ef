from __future__ import annotations

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from suffice.checkpoint import misfits


def tell(path, tensors, expected):
    save_file(tensors, path)
    with safe_open(path, framework="pt") as file:
        return misfits(file, {name: name for name in tensors}, expected)


def test_what_fits_has_no_misfits(tmp_path):
    tensors = {"a": torch.ones(2), "b": torch.ones((), dtype=torch.int64)}
    assert tell(tmp_path / "a", tensors, tensors) == []


def test_a_long_list_is_cut_and_counted(tmp_path):
    tensors = {f"t{i:02}": torch.ones(2) for i in range(30)}
    told = tell(tmp_path / "a", tensors, {name: torch.ones(3) for name in tensors})
    assert len(told) == 17
    assert told[0] == "'t00' has shape [2], expected [3]."
    assert told[-1] == "And 14 more."


def test_missing_and_unexpected_are_cut_alike(tmp_path):
    told = tell(
        tmp_path / "a",
        {f"found{i}": torch.ones(1) for i in range(10)},
        {f"wanted{i}": torch.ones(1) for i in range(9)},
    )
    assert [line.split()[-1] for line in told] == ["missing."] * 8 + ["expected."] * 8 + ["more."]
    assert told[-1] == "And 3 more."


def test_names_are_quoted_and_shortened(tmp_path):
    told = tell(tmp_path / "a", {"\x1b[31m" + "x" * 500: torch.ones(1)}, {})
    assert told == [repr("\x1b[31m" + "x" * 72 + "...") + " is not expected."]
