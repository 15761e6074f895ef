"""The tab of patterns as a user meets it."""

from __future__ import annotations

import ast

import pytest
from PIL import Image

from studio.tests.links import link, linked
from suffice import patterns as module
from suffice.presets import PRESETS, TITLES
from suffice.view import draw


@pytest.fixture
def patterns(request, page, studio, static):
    """The tab, served by the program unless the test is parametrised with "static"."""
    served = getattr(request, "param", "served") == "served"
    start = link("patterns", mechanism="longformer", length=64, causal=True)
    page.goto((studio.url if served else static.as_uri()) + start)
    page.locator("#pattern-counts dd").first.wait_for()
    return page


def counted(page) -> str:
    return page.inner_text("#pattern-counts").replace("\n", " ")


def test_a_mechanism_is_drawn_with_its_counts(patterns, shot):
    page = patterns
    page.select_option("#pattern-mechanism", "bigbird")
    page.locator("#pattern-parts", has_text="Random").wait_for()
    panel = draw(eval(page.input_value("#pattern-code"), vars(module)), 64).panels[0]
    assert f"{panel.visible:,}" in counted(page)
    assert f"{panel.computed:,}" in counted(page)
    shot("patterns")


def test_causal_changes_the_pattern(patterns):
    page = patterns
    page.locator("#pattern-causal").uncheck()
    page.locator("#pattern-canvas[aria-label^='Window(size=8) | Global(tokens=1):']").wait_for()
    assert page.input_value("#pattern-code") == "Window(size=8) | Global(tokens=1)"
    page.select_option("#pattern-mechanism", "linformer")
    page.locator("#pattern-canvas[aria-label^='Full()']").wait_for()
    page.locator("#pattern-causal").check()
    page.locator("#pattern-error", has_text="linformer cannot be causal").wait_for()


def test_hover_names_the_rule(patterns):
    page = patterns
    box = page.locator("#pattern-canvas").bounding_box()
    side = (box["width"] - 40) / 64
    for query, key, text in (
        (63, 60, "Query 63, key 60: seen, by Window(size=8)."),
        (63, 0, "Query 63, key 0: seen, by Global(tokens=1)."),
        (30, 10, "Query 30, key 10: hidden, no part allows it."),
        (10, 30, "Query 10, key 30: hidden, the key comes later."),
    ):
        at = (box["x"] + 40 + (key + 0.5) * side, box["y"] + 40 + (query + 0.5) * side)
        page.mouse.move(*at)
        assert page.inner_text("#pattern-hover") == text
    page.focus("#pattern-canvas")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#pattern-hover").startswith("Query 10, key 29")
    assert "query 10" in page.inner_text(".reach h3")


def test_the_receptive_field_follows_the_query(patterns):
    page = patterns
    strips = page.locator("#pattern-reach > div")
    assert strips.nth(0).inner_text().split("\n")[-1] == "9 tokens"
    assert strips.nth(1).inner_text().split("\n")[-1] == "16 tokens"


def test_zoom_keeps_the_pair_in_sight(patterns):
    page = patterns
    page.click("[aria-label='Zoom in']")
    page.click("[aria-label='Zoom in']")
    box = page.locator("#pattern-canvas").bounding_box()
    page.mouse.move(box["x"] + 45, box["y"] + 45)
    near = page.inner_text("#pattern-hover")
    assert not near.startswith("Query 0,")
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 400)
    page.mouse.up()
    page.mouse.move(box["x"] + 45, box["y"] + 45)
    assert page.inner_text("#pattern-hover").startswith("Query 0, key 0")
    page.click("[aria-label='Whole pattern']")


def test_own_patterns_are_drawn(patterns, shot):
    page = patterns
    page.fill("#pattern-code", "PerHead((Window(4), Strided(8))) & Causal()")
    page.locator(".heads", has_text="heads 2").wait_for()
    assert page.input_value("#pattern-mechanism") == "a pattern of my own"
    page.locator(".heads label", has_text="heads 2").click()
    page.locator("#pattern-canvas[aria-label*='heads 2']").wait_for()
    page.fill("#pattern-code", "Window(4)")
    page.click("text=+ Global")
    page.locator("#pattern-parts", has_text="Global").wait_for()
    assert page.input_value("#pattern-code") == "Window(4) | Global(tokens=1)"


def test_wrong_code_is_refused(patterns):
    page = patterns
    page.fill("#pattern-code", "Windoww(4)")
    page.locator("#pattern-error", has_text="unknown pattern").wait_for()
    page.fill("#pattern-code", "open('x')")
    page.locator("#pattern-error", has_text="unknown pattern").wait_for()
    assert page.locator(".shown-pattern.stale").evaluate("(node) => node.inert")
    assert "Traceback" not in page.content()
    page.fill("#pattern-code", "Window(4)")
    page.locator(".shown-pattern:not(.stale)").wait_for()
    page.locator("#pattern-parts", has_text="Window(size=4)").wait_for()
    assert page.locator("#pattern-error").is_hidden()


@pytest.mark.parametrize("patterns", ["served", "static"], indirect=True)
def test_pictures_and_code_are_saved(patterns, tmp_path):
    page = patterns
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the pattern as SVG").click()
    svg = tmp_path / saved.value.suggested_filename
    saved.value.save_as(svg)
    assert svg.name == "longformer.svg"
    assert "Window(size=8)" in svg.read_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the pattern as PNG").click()
    png = tmp_path / saved.value.suggested_filename
    saved.value.save_as(png)
    colours = {colour for _, colour in Image.open(png).convert("RGB").getcolors(1 << 20)}
    assert {(0x1A, 0x62, 0xA5), (0xDD, 0x55, 0x16)} <= colours
    code = page.inner_text("#pattern-python")
    assert 'suffice.preset("longformer", 64, 4, length=64, causal=True)' in code
    lines = code.replace("pattern.svg", str(tmp_path / "own.svg"))
    names: dict[str, object] = {}
    exec(compile(ast.parse(lines), "page", "exec"), names)  # the page says that it runs
    assert names["pattern"] == names["spec"].pattern
    assert (tmp_path / "own.svg").is_file()


def test_every_mechanism_has_its_data_flow(patterns):
    page = patterns
    for name in PRESETS:
        page.select_option("#pattern-mechanism", name)
        page.locator(".flow-box h2", has_text=TITLES[name]).wait_for()
        assert page.locator("#pattern-flow svg .map").count() >= 2
        assert page.locator("#pattern-error").is_hidden()
    page.fill("#pattern-code", "PerHead((Window(3), Full()))")
    page.locator("#pattern-flow svg.flow").wait_for(state="detached")


def test_a_pattern_of_my_own_is_in_the_link(patterns):
    page = patterns
    page.fill("#pattern-code", "Window(3) | Random(2, length=64)")
    page.locator("#pattern-canvas[aria-label^='Window(size=3) | Random']").wait_for()
    page.wait_for_timeout(400)
    address = page.url
    assert linked(address)["code"] == "Window(3) | Random(2, length=64)"
    page.goto("about:blank")
    page.goto(address)
    page.locator("#pattern-canvas[aria-label^='Window(size=3) | Random']").wait_for()


def test_random_keys_may_lie_ahead_where_the_pattern_may(patterns):
    page = patterns
    page.locator("#pattern-causal").uncheck()
    page.get_by_role("button", name="+ Random").click()
    page.locator("#pattern-parts", has_text="Random(keys=3, length=64)").wait_for()
    assert page.input_value("#pattern-code").endswith("| Random(keys=3, length=64)")


def test_the_data_flow_is_that_of_the_toggles(patterns):
    page = patterns
    page.select_option("#pattern-mechanism", "gqa")
    page.set_checked("#pattern-causal", False)
    flow = page.locator("#pattern-flow svg")
    assert "Full" in flow.text_content()
    page.set_checked("#pattern-causal", True)
    assert "Causal" in flow.text_content()
    assert "Full" not in flow.text_content()


def test_the_flow_comes_first_where_the_pattern_is_plain(patterns):
    page = patterns

    def flow_is_first():
        heights = [page.locator(name).bounding_box()["y"] for name in ("#pattern-flow", ".drawing")]
        return heights[0] < heights[1]

    page.select_option("#pattern-mechanism", "longformer")
    assert not flow_is_first()
    page.select_option("#pattern-mechanism", "mqa")
    assert flow_is_first()


def test_a_pattern_that_is_shown_whole_stays_whole_when_the_page_narrows(patterns):
    page = patterns
    page.select_option("#pattern-mechanism", "longformer")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("() => document.querySelector('#pattern-canvas').clientWidth < 390")
    page.wait_for_timeout(100)
    page.locator(".under").scroll_into_view_if_needed()
    box = page.locator("#pattern-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    assert "Query 63, key 63" in page.inner_text("#pattern-hover")
