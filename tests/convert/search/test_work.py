"""What is kept of a search."""

from __future__ import annotations

import pytest
import torch

from suffice.convert.search.scoring import WorkFolder
from suffice.errors import ConfigError, DataError
from suffice.testing import assert_close


@pytest.mark.parametrize("where", ["folder", None])
def test_results_are_read_back(where, tmp_path):
    work = WorkFolder(where and tmp_path / where)
    assert work.read("scores/a b") is None
    assert work.read_tensors("fits/a b") is None
    work.write("scores/a b", [1, 2])
    work.write_tensors("fits/a b", {"x": torch.ones(2)}, {"error": 0.5})
    assert work.read("scores/a b") == [1, 2]
    tensors, facts = work.read_tensors("fits/a b")
    assert_close(tensors["x"], torch.ones(2), "exact")
    assert facts == {"error": 0.5}
    names = sorted(path.name for path in tmp_path.rglob("a*"))
    assert names == (["a%20b.json", "a%20b.safetensors"] if where else [])


def test_a_folder_holds_one_search(tmp_path):
    asked = {"model": "a", "length": 4}
    WorkFolder(tmp_path / "x").claim(asked, resume=True)
    WorkFolder(tmp_path / "x").claim(asked, resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        WorkFolder(tmp_path / "x").claim(asked, resume=False)
    with pytest.raises(ConfigError, match="length was 4 and is 5"):
        WorkFolder(tmp_path / "x").claim(asked | {"length": 5}, resume=True)


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "latency.json").write_text("{")
    with pytest.raises(DataError, match=r"latency.json"):
        WorkFolder(tmp_path).read("latency")
