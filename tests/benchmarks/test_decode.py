"""The benchmark of decoding runs, and what it times computes what the reference computes."""

from __future__ import annotations

import torch

from benchmarks import decode
from benchmarks.contest import Effort


def test_every_side_of_the_table_is_right(monkeypatch, capsys):
    monkeypatch.setattr(decode, "QUICK", Effort(rounds=1, warmup=0, seconds=1e-7, shrink=64))
    monkeypatch.setattr(decode, "keep_large_temporaries", lambda: "unchanged")
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert decode.main(["--quick"]) == 0
    assert "8 heads on 1, 512 keys, 8 bits" in capsys.readouterr().out
