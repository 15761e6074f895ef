"""The committed pages are what their generator writes, and their links resolve."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from docs import build
from suffice.kernels.base import METHODS
from suffice.spec import AXES
from tests.meta.test_words import FORMS

DOCS = Path(build.__file__).resolve().parent


def files(folder):
    """Return the files below a folder by name, without compiled Python."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix(): path for path in paths}


def is_generated(name, path):
    """Return whether a file is marked as generated, or lies where all files are."""
    if name.endswith(".md"):
        return build.MADE in path.read_text()
    return name in build.DRAWINGS or name.startswith(("mechanisms/", "examples/"))


def test_pages_are_up_to_date(tmp_path):
    (tmp_path / "mechanisms").mkdir()
    (tmp_path / "mechanisms" / "gone.md").write_text("a mechanism that is no more")
    build.write(tmp_path)
    fresh, committed = files(tmp_path), files(DOCS)
    generated = {name for name, path in committed.items() if is_generated(name, path)}
    assert generated == set(fresh), "run `make docs`"
    stale = [name for name in fresh if fresh[name].read_bytes() != committed[name].read_bytes()]
    assert stale == [], "run `make docs`"


def prose(path):
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_links_resolve(path):
    for link in re.findall(r"\]\(([^)#]+)\)", prose(path)):
        assert link.startswith("https://") or (path.parent / link).is_file(), link


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(DOCS.rglob("*.md")) if build.MADE not in path.read_text()],
    ids=lambda path: path.name,
)
def test_pages_are_in_plain_english(path):
    """None of the forms that docstrings may have less and less of."""
    assert {name for name, form in FORMS.items() if re.search(form, prose(path))} == set()


def test_the_page_of_own_mechanisms_names_the_methods_of_every_axis():
    page = (DOCS / "mechanism.md").read_text(encoding="utf-8")
    methods = {*chain.from_iterable(METHODS.values())}
    methods.update(*(getattr(base, "__abstractmethods__", ()) for base in AXES.values()))
    assert {name for name in methods if f"`{name}`" not in page} == set()
    assert {axis for axis in AXES if f"\n| {axis}" not in page} == set()
