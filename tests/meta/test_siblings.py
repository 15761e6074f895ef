"""Packages beside suffice have its version, stand on it alone, and bring the verbs they promise."""

from __future__ import annotations

import tomllib

import pytest

from suffice import __version__
from suffice.cli import SIBLINGS as BROUGHT
from suffice.cli import VERBS
from tests.meta.packages import ROOT, SIBLINGS

FOLDERS = {folder.name: folder / "pyproject.toml" for folder in SIBLINGS}
MOST_README_LINES = 12


def test_every_sibling_brings_verbs_that_help_lists():
    assert set(FOLDERS) == {folder for _, folder in BROUGHT.values()}
    assert BROUGHT.keys() <= VERBS.keys()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_sibling_has_the_version_of_the_core(folder):
    settings = tomllib.loads(FOLDERS[folder].read_text("utf-8"))
    project, module = settings["project"], settings["tool"]["flit"]["module"]["name"]
    assert project["version"] == __version__
    assert f"suffice=={__version__}" in project["dependencies"]
    verbs = [verb for verb, brought in BROUGHT.items() if brought == (project["name"], folder)]
    entries = project["entry-points"]["suffice.verbs"]
    assert list(entries) == verbs
    assert all(entry.startswith(f"{module}.") for entry in entries.values())
    assert module == project["name"].replace("-", "_")
    assert len((ROOT / folder / "README.md").read_text("utf-8").splitlines()) <= MOST_README_LINES
