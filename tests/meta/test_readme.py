"""The README's code runs and prints what it shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import torch

from docs.measured import contest, measured
from suffice.presets import PRESETS

README = Path(__file__).resolve().parents[2] / "README.md"


def test_code_blocks_print_what_they_show():
    torch.manual_seed(0)
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried >= 7) == (0, True)


def test_its_table_is_that_of_the_atlas_and_every_preset_is_named():
    text = README.read_text(encoding="utf-8")
    assert all(f"\n{table}\n" in text for table in (measured(), contest()))
    assert f"Ten of {len(PRESETS)} mechanisms" in text
    assert [name for name in PRESETS if f"`{name}`" not in text] == []


def test_its_counts_of_claims_are_those_of_the_evidence():
    page = (README.parent / "docs" / "evidence.md").read_text(encoding="utf-8")
    counts = [int(number) for number in re.findall(r"> [a-z ]+ \((\d+)\)</label>", page)]
    claims, confirmed, contradicted, undecided, untested = counts
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"checks {claims} claims" in text
    assert f"{confirmed} are confirmed, {contradicted} contradicted, {undecided} undecided" in text
    assert f"{untested} not tested here" in text
