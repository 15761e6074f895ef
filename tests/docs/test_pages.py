"""The committed pages are what their generator writes, and the code in them runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

from docs import build
from suffice.native import library
from suffice.patterns import Pattern
from suffice.presets import PRESETS
from suffice.spec import AXES

DOCS = Path(build.__file__).resolve().parent
WRITTEN = {"build.py", "evidence.md", "flash.md", "huggingface.md", "patterns.md", "studio.md"}


def files(folder):
    """Every file below a folder but what Python leaves there."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found if path.suffix != ".pyc"}


def test_the_pages_are_up_to_date(tmp_path):
    (tmp_path / "mechanisms").mkdir()
    (tmp_path / "mechanisms" / "gone.md").write_text("a mechanism that is no more")
    build.write(tmp_path)
    made, kept = files(tmp_path), files(DOCS)
    assert set(kept) == set(made) | WRITTEN, "run `make docs`"
    stale = [name for name in made if made[name].read_bytes() != kept[name].read_bytes()]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_page_says_all_it_must(name):
    page = (DOCS / "mechanisms" / f"{name}.md").read_text()
    for wanted in (
        f"# {name}\n",
        "Choose it",
        "**Cost.** ",
        "**Source.** ",
        "pairs visible",
        "| 4,096 |",
    ):
        assert wanted in page
    assert f"]({name}.svg)" in page
    assert "None" not in re.sub(r"`[^`]*`|None =", "", page)


def test_every_axis_value_is_listed():
    page = (DOCS / "axes.md").read_text()
    for axis, family in AXES.items():
        assert f"\n## {axis}\n" in page
        for name, kind in family.table.items():
            if kind.__module__.startswith("suffice."):
                assert f"\n### {name}\n" in page


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).is_file(), link


@pytest.mark.parametrize("name", ["patterns.md", "flash.md", "huggingface.md"])
def test_the_code_runs_and_prints_what_it_shows(name, tmp_path, monkeypatch):
    if name == "huggingface.md":
        pytest.importorskip("transformers", reason="the extra hf is not installed")
    if name == "flash.md" and not library.available():
        pytest.skip(f"the page shows the plan where there are kernels; here {library.why_not()}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    try:
        failed, tried = doctest.testfile(str(DOCS / name), module_relative=False, encoding="utf-8")
    finally:
        Pattern.table.pop("Powers", None)
    blocks = (DOCS / name).read_text().count("```python")
    assert tried >= blocks > 0
    assert failed == 0
