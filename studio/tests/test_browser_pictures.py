"""Every picture as a file, a link and a frame of another page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from studio.tests.links import linked
from studio.tests.test_browser_fit import CUT

PICTURES = {
    "calculator": {"fits": "what fits", "cache": "the KV cache over length"},
    "patterns": {"flow": "the data flow", "pattern": "the pattern"},
    "steps": {"left": "Multi-head attention", "right": "GQA"},
    "compare": {"tradeoff": "cost against quality", "curves": "validation accuracy"},
}
EVERY = [(tab, picture) for tab, pictures in PICTURES.items() for picture in pictures]
OUTSIDE = """(name) => [...document.querySelectorAll("main *, header *")].filter((node) =>
    node.checkVisibility() && !node.closest(`[data-picture~="${name}"], .whole, h1`)
    && !node.querySelector(`[data-picture~="${name}"], .whole`)).map((node) => node.outerHTML)"""


@pytest.fixture
def menu(page, static):
    """A function that opens a tab and returns the menu of a picture."""

    def find(tab: str, picture: str):
        page.goto("about:blank")
        page.goto(f"{static.as_uri()}#{tab}")
        name = re.compile(f"Save or share {PICTURES[tab][picture]}")
        group = page.get_by_role("group", name=name).first
        group.wait_for()
        return group

    return find


def shared(page, group, kind: str) -> str:
    """Return what a button of the menu gives, pressed by keyboard."""
    group.get_by_role("button", name=kind).focus()
    page.keyboard.press("Enter")
    field = group.get_by_role("textbox")
    selected = "(node) => node.value.slice(node.selectionStart, node.selectionEnd)"
    assert field.evaluate(selected) == field.input_value()
    return field.input_value()


def assert_alone(page, picture: str) -> None:
    """Assert that the page shows this picture and nothing else."""
    page.locator(f"[data-picture~={picture}] :is(svg, canvas)").first.wait_for()
    page.wait_for_timeout(150)
    assert page.evaluate(OUTSIDE, picture) == []
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize(("tab", "picture"), EVERY)
def test_every_picture_has_one_menu(page, menu, tab, picture):
    group = menu(tab, picture)
    kinds = [kind for kind in group.get_by_role("button").all_inner_texts() if kind != "CSV"]
    assert kinds == ["SVG", "PNG", "Link", "Embed"]
    with page.expect_download() as download:
        group.get_by_role("button", name="SVG").click()
    assert ElementTree.parse(download.value.path()).getroot().tag.endswith("svg")
    with page.expect_download() as download:
        group.get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize(("tab", "picture"), EVERY)
def test_a_link_shows_the_picture_alone(page, menu, tab, picture, width):
    address = shared(page, menu(tab, picture), "Link")
    page.set_viewport_size({"width": width, "height": 700})
    page.goto("about:blank")
    page.goto(address)
    assert_alone(page, picture)


@pytest.mark.parametrize(("tab", "picture"), EVERY)
def test_a_course_frames_the_picture(page, menu, tmp_path, tab, picture):
    snippet = shared(page, menu(tab, picture), "Embed")
    frame = ElementTree.fromstring(snippet)
    assert re.search(PICTURES[tab][picture], frame.get("title", ""))
    course = tmp_path / "course.html"
    course.write_text(f"<!DOCTYPE html><title>Course</title><p>Look:</p>{snippet}", "utf-8")
    page.goto(course.as_uri())
    inside = next(one for one in page.frames if one != page.main_frame)
    inside.wait_for_load_state()
    assert_alone(inside, picture)
    room, needed = inside.evaluate("[innerHeight, document.documentElement.scrollHeight]")
    assert needed <= room + 60, "the frame is as high as its picture"


def test_a_framed_flow_has_its_sliders(page, menu):
    address = shared(page, menu("patterns", "flow"), "Link")
    page.goto("about:blank")
    page.goto(address)
    page.focus("#layer-kv")
    page.keyboard.press("End")
    page.locator("h2", has_text="MQA").wait_for()
    page.wait_for_timeout(400)
    assert page.url.endswith("&picture=flow")
    page.locator(".whole").evaluate("(link) => link.dispatchEvent(new Event('click'))")
    whole = page.locator(".whole").evaluate("(link) => link.href")
    assert linked(whole)["kv"] == 1
    page.goto(whole)
    page.locator("#pattern-mechanism").wait_for()


@pytest.mark.parametrize("end", ["&picture=nothing", "&picture=", "&picture=tradeoff"])
def test_an_unknown_picture_opens_the_whole_page(page, static, end):
    page.goto(f"{static.as_uri()}#patterns?{end}")
    mechanism = page.locator("#pattern-mechanism")
    mechanism.wait_for()
    assert mechanism.is_visible()


def test_the_program_says_which_page_can_be_framed(page, studio):
    page.goto(f"{studio.url}#patterns")
    group = page.get_by_role("group", name="Save or share the data flow")
    snippet = shared(page, group, "Embed")
    assert "suffice studio --export" in snippet
    assert 'src="index.html#patterns?' in snippet
