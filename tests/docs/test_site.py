"""The site builds without a warning, loads nothing from other hosts and has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import build
from suffice.presets import PRESETS

ROOT = Path(build.__file__).resolve().parents[1]


@pytest.mark.lint
def test_the_site_has_every_page(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        name = name.with_name("index.html") if name.stem == "README" else name
        assert (site / name).is_file(), name


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
