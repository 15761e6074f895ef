"""The site builds without a warning, loads nothing from other hosts and has every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import build
from suffice import __version__
from suffice.presets import PRESETS

ROOT = Path(build.__file__).resolve().parents[1]
BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
build(load_config("mkdocs.yml", docs_dir=sys.argv[1], site_dir=sys.argv[2], strict=True))
"""  # mkdocs build, on staged pages of the test


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="the group docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the group docs is not installed")
    staged, folder = tmp_path_factory.mktemp("staged") / "docs", tmp_path_factory.mktemp("site")
    build.stage(staged)
    result = subprocess.run(
        [sys.executable, "-c", BUILD, str(staged), str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


@pytest.mark.lint
def test_the_site_has_every_page(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        name = name.with_name("index.html") if name.stem == "README" else name
        assert (site / name).is_file(), name


@pytest.mark.lint
def test_the_changelog_and_the_version_are_in_the_navigation(site):
    start = (site / "index.html").read_text()
    assert f"Changelog {__version__}" in start
    assert f"suffice {__version__} &middot;" in start
    assert "Unreleased" in (site / "changelog.html").read_text()


@pytest.mark.lint
def test_pages_load_nothing_from_other_hosts(site):
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?://[^"]+)"')
    outside = {url for page in site.rglob("*.html") for url in loads.findall(page.read_text())}
    assert outside == set()


@pytest.mark.lint
def test_the_reference_shows_signatures_and_examples(site):
    page = (site / "api" / "layers.html").read_text()
    for name in ("AttentionSpec", "attend", "from_torch"):
        assert f'id="suffice.{name}"' in page
    assert "&gt;&gt;&gt;" in page or "gp" in page


def test_the_configuration_is_current():
    """It says what `make docs` makes of the presets and the version."""
    assert build.SITE.read_text("utf-8") == build.configuration()
    assert all(f"mechanisms/{name}.md" in build.configuration() for name in PRESETS)
