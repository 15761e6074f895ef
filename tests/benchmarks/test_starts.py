"""The page of classifiers shows the table that was kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import starts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["starts", "starts_imdb"])
def test_the_page_shows_what_was_kept(name):
    kept = json.loads((ROOT / f"benchmarks/measured/{name}.json").read_text())["records"]
    assert starts.table_of(kept) in (ROOT / "docs/have/classifier.md").read_text()
