"""Accessibility of every tab, as axe-core checks it."""

from __future__ import annotations

import pytest

from studio.tests.test_browser_fit import SIZES, STATES, opened
from studio.tests.test_browser_pictures import PICTURES
from suffice.presets import PRESETS


@pytest.fixture(scope="module")
def axe():
    """The rules of axe-core; skips where they are not installed."""
    module = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    return module.Axe()


def findings(axe, page) -> list[str]:
    """Return each rule that the page breaks, with the elements that break it."""
    # axe cannot tell the contrast of text over the shadows at the edges of what scrolls
    page.evaluate(
        "document.querySelectorAll('.scroll').forEach((n) => {n.style.background = 'none'})"
    )
    return [
        f"{found['id']}: {node['html'][:200]} {node['failureSummary']}"
        for found in axe.run(page).response["violations"]
        for node in found["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("tab", STATES)
def test_axe_finds_nothing(page, full, axe, tab, width, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, full, tab, width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert findings(axe, page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_data_flow(page, full, axe, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, full, "patterns", 1400)
    for name in PRESETS:
        page.select_option("#pattern-mechanism", name)
        assert findings(axe, page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_picture_alone(page, static, axe, scheme):
    page.emulate_media(color_scheme=scheme)
    for tab, pictures in PICTURES.items():
        for picture in pictures:
            page.goto("about:blank")
            page.goto(f"{static.as_uri()}#{tab}?&picture={picture}")
            page.locator(f"[data-picture~={picture}] :is(svg, canvas)").first.wait_for()
            assert findings(axe, page) == []


def test_axe_finds_nothing_in_a_menu_that_is_open(page, full, axe):
    opened(page, full, "patterns", 1400)
    page.get_by_role("button", name="Embed the data flow").click()
    assert findings(axe, page) == []


def test_axe_finds_nothing_in_an_error(page, full, axe):
    opened(page, full, "patterns", 390)
    page.fill("#pattern-code", "Windw(3)")
    page.locator("#pattern-error").wait_for()
    assert findings(axe, page) == []


@pytest.mark.parametrize(
    ("tab", "act", "words"),
    [
        ("calculator", lambda page: page.fill("#length-number", "8192"), "8,192 tokens: Llama"),
        ("patterns", lambda page: page.fill("#pattern-code", "Window(2)"), "190 of 4,096 pairs"),
        ("steps", lambda page: page.click("#steps-next"), "may see 6 of 8 keys"),
        ("compare", lambda page: page.select_option("#compare-cost", "latency"), "suffices"),
    ],
)
def test_a_change_is_announced(page, full, tab, act, words):
    opened(page, full, tab, 1400)
    act(page)
    page.locator("#status[role=status]", has_text=words).wait_for(state="attached")


def test_axe_finds_what_is_wrong(page, full, axe):
    opened(page, full, "compare", 1400)
    page.evaluate("document.querySelector('#compare-cost').labels[0].remove()")
    assert [found.split(":")[0] for found in findings(axe, page)] == ["select-name"]
