"""The README's code runs and prints what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
import torch

from docs.measured import measured
from suffice.ops import linear
from suffice.ops.native import library

README = Path(__file__).resolve().parents[2] / "README.md"


def test_code_blocks_print_what_they_show(monkeypatch):
    if not linear.PRESENT:
        pytest.skip("the README shows the plan of a CPU with AVX-512")
    if not library.available():
        pytest.skip(f"the README shows the plan where there are kernels; here {library.why_not()}")
    monkeypatch.setattr(linear, "WINS", True)
    torch.manual_seed(0)
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert tried > 8
    assert failed == 0


def test_the_measured_table_is_that_of_the_published_result():
    assert f"\n{measured()}\n" in README.read_text(encoding="utf-8")
