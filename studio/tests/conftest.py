"""One headless Chromium, one studio and one exported page for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from studio.tests.models import write_lm, write_vit
from suffice.comparison.results import write_results
from suffice_studio import Folders, export, served
from tests.comparison.synthetic import realistic

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WAIT = 30_000  # ms


def chromium() -> str | None:
    """Return the path of a Chromium on this machine."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="package")
def browser_page():
    """One page of one browser, and the errors it reports; skips where there is no browser."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: install the package chromium, or set CHROMIUM")
    errors: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        page = browser.new_page(accept_downloads=True)
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: _is_local(request.url) or errors.append(request.url))
        yield page, errors
        browser.close()


@pytest.fixture
def page(browser_page):
    """The page, emptied; fails the test if a script fails or anything outside is requested."""
    page, errors = browser_page
    page.goto("about:blank")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    errors.clear()
    yield page
    assert errors == []


def _is_local(url: str) -> bool:
    return url.startswith(("file:", "http://127.0.0.1:", "data:", "blob:", "about:"))


@pytest.fixture(scope="package")
def static(tmp_path_factory):
    """The exported page's file."""
    return export(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="package")
def models(browser_page, static):
    """What the page counts from of each published model, by name."""
    page, _ = browser_page
    page.goto(static.as_uri())
    return page.evaluate("() => window.studio.knownModels()")


@pytest.fixture(scope="package")
def studio():
    """A studio that serves what comes with the package."""
    with served() as running:
        yield running


@pytest.fixture(scope="package")
def results():
    """A comparison of ours."""
    return realistic(seeds=4)


@pytest.fixture(scope="package")
def full(tmp_path_factory, results):
    """A studio with something in every tab."""
    root = tmp_path_factory.mktemp("runs")
    write_results(root / "mine" / "results.json", results)
    (root / "broken").mkdir()
    (root / "broken" / "results.json").write_text("{")
    write_lm(root / "models" / "letters")
    write_lm(root / "models" / "window", "sliding_window", window=3)
    write_vit(root / "models" / "pictures")
    write_vit(root / "models" / "classed", pooling="class_token")
    with served(Folders(results=(root,), checkpoints=root)) as running:
        yield running


@pytest.fixture
def shot(page):
    """A function that saves a screenshot of the page."""

    def save(name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    return save
