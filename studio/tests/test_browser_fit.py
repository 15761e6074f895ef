"""Every tab on a phone and on a desk: nothing is cut."""

from __future__ import annotations

import pytest

from studio.tests.links import link
from suffice.presets import PRESETS
from suffice_studio.steps import TEXT

SIZES = {390: 844, 1400: 900}
STATES = {
    "calculator": link("calculator"),
    "patterns": link("patterns", mechanism="bigbird", length=64, causal=True),
    "steps": link("steps", left="standard", right="mla", text=TEXT),
    "compare": "#compare",
    "attention": link("attention", checkpoint="models/letters", text="abc, def."),
}
READY = {
    "calculator": "#calculator-table",
    "patterns": "#pattern-counts dd",
    "steps": "#steps-right svg.steps",
    "compare": ".verdict",
    "attention": "#map",
}

CUT = """() => {
    const shown = {opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true};
    const name = (node) => node.outerHTML.slice(0, 160);
    const cut = [];
    // Whether a box can be seen or scrolled to, through every ancestor that clips it.
    const check = (node, {left, right, top, bottom}) => {
        const box = {x: [left, right], y: [top, bottom]};
        for (let clip = node; clip && clip !== document.body; clip = clip.parentElement) {
            const style = getComputedStyle(clip);
            if (style.clipPath !== "none" || style.position === "absolute" && left < -500) return;
            const room = clip.getBoundingClientRect();
            const axes = {
                x: [style.overflowX, room.left, room.right, clip.scrollLeft, clip.scrollWidth],
                y: [style.overflowY, room.top, room.bottom, clip.scrollTop, clip.scrollHeight],
            };
            for (const [axis, [overflow, start, end, offset, length]] of Object.entries(axes)) {
                const [from, to] = box[axis];
                if (overflow === "visible" || from >= start - 1 && to <= end + 1) continue;
                const scrolls = overflow === "auto" || overflow === "scroll";
                const within = from >= start - offset - 1 && to <= start - offset + length + 1;
                const keys = clip.tabIndex >= 0 || clip.querySelector("button, a, input, select");
                if (!scrolls || !within || !keys) cut.push(`${name(node)} in ${name(clip)}`);
                box[axis] = [Math.max(from, start), Math.min(to, end)];
            }
        }
        if (box.x[0] < -0.5 || box.x[1] > innerWidth + 0.5) cut.push(`page: ${name(node)}`);
    };
    const pictures = document.querySelectorAll("canvas, svg, button, input, select, textarea, img");
    for (const node of pictures) {
        if (node.checkVisibility(shown)) check(node.parentElement, node.getBoundingClientRect());
    }
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const node = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || node.closest("select, textarea, title")) continue;
        if (!node.checkVisibility(shown)) continue;
        const range = document.createRange();
        range.selectNodeContents(texts.currentNode);
        for (const box of range.getClientRects()) check(node, box);
    }
    return cut;
}"""


def assert_fits(page, width: int) -> None:
    """Assert that the page is no wider than the screen, and nothing on it is out of reach."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []


def opened(page, full, tab: str, width: int):
    """Return the page with a tab that shows what it can show."""
    page.set_viewport_size({"width": width, "height": SIZES[width]})
    page.goto(full.url + STATES[tab])
    if tab == "compare":
        page.get_by_role("button", name="mine").click()
    page.locator(READY[tab]).first.wait_for()
    page.wait_for_timeout(150)  # for what follows the size of the window
    return page


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("tab", STATES)
def test_nothing_is_cut(page, full, tab, width):
    opened(page, full, tab, width)
    assert_fits(page, width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert_fits(page, width)


@pytest.mark.parametrize("width", SIZES)
def test_no_mechanism_is_cut(page, full, width):
    opened(page, full, "patterns", width)
    for name in PRESETS:
        page.select_option("#pattern-mechanism", name)
        assert_fits(page, width)


def test_no_published_comparison_is_cut(page, full):
    opened(page, full, "compare", 390)
    for button in page.locator(".models button", has_text="published").all():
        with page.expect_response("**/api/comparison", timeout=120_000) as answer:
            button.click()
        page.locator("#comparison h2", has_text=answer.value.json()["title"]).wait_for()
        assert_fits(page, 390)


def test_the_check_finds_what_is_cut(page, full):
    opened(page, full, "compare", 390)
    page.evaluate("""() => {
        for (const overflow of ["visible", "hidden", "auto"]) {
            const [box, line] = ["div", "p"].map((tag) => document.createElement(tag));
            box.append(line);
            box.style = `width: 200px; overflow-x: ${overflow}`;
            line.style = "white-space: nowrap; width: 600px";
            line.textContent = "as long as a line that no phone has room for ".repeat(2);
            document.querySelector("#panel-compare").append(box);
        }
    }""")
    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert len(page.evaluate(CUT)) == 3
