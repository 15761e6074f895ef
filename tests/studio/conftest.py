"""A headless Chromium, one for all tests of the page, and a studio to look at."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from suffice.studio import export, served

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WAIT = 30_000  # ms


def chromium() -> str | None:
    """Return a Chromium of this machine."""
    given = os.environ.get("CHROMIUM")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="package")
def browser():
    """One browser; tests that need it are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: install the package chromium, or set CHROMIUM")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield found
        found.close()


@pytest.fixture(scope="package")
def static(tmp_path_factory):
    """The exported page's file."""
    return export(tmp_path_factory.mktemp("site"))


@pytest.fixture
def page(browser):
    """A page of its own that fails the test if a script fails or anything outside is asked for."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    opened.set_default_timeout(WAIT)
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda asked: _is_own(asked.url) or errors.append(asked.url))
    yield opened
    opened.close()
    assert errors == []


def _is_own(url: str) -> bool:
    return url.startswith(("file:", "http://127.0.0.1:", "data:", "blob:"))


@pytest.fixture
def shot(page):
    """Keep a picture of the page."""

    def keep(name: str) -> Path:
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=path, full_page=True)
        return path

    return keep


@pytest.fixture(scope="package")
def studio():
    """A studio that serves what comes with the package."""
    with served() as found:
        yield found
