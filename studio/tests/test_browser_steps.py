"""The tab of steps as a teacher meets it."""

from __future__ import annotations

import pytest

from studio.tests.links import link, linked
from studio.tests.test_browser_fit import assert_fits
from suffice.presets import PRESETS
from suffice_studio.steps import TEXT, answer

LAST = 4


@pytest.fixture
def steps(request, page, studio, static):
    """The tab, served by the program unless the test is parametrised with "static"."""
    served = getattr(request, "param", "served") == "served"
    page.goto((studio.url if served else static.as_uri()) + link("steps", left="standard"))
    page.locator("#steps-left svg.steps").wait_for()
    return page


def numbers(page, side: str) -> list[float]:
    """Return the numbers of all cells that are shown, as their tooltips say them."""
    titles = f"#steps-{side} svg.steps .since:not(.later) title"
    return [float(words) for words in page.locator(titles).all_text_contents()]


@pytest.mark.parametrize("steps", ["served", "static"], indirect=True)
def test_the_steps_show_the_numbers_of_the_layer(steps, shot):
    page = steps
    for _ in range(LAST):
        page.click("#steps-next")
    assert page.locator("#steps-next").is_disabled()
    for side, name in (("left", "standard"), ("right", "gqa")):
        wanted = answer({"mechanism": name, "causal": True, "text": TEXT})["numbers"]
        query, head = 5, 1
        assert numbers(page, side)[-16:] == wanted["output"][query]
        shared = head * len(wanted["key"]) // len(wanted["heads"])
        first = wanted["query"][head][query] + sum(wanted["key"][shared], [])
        assert numbers(page, side)[: len(first)] == first
    shot("steps")


@pytest.mark.parametrize("steps", ["static"], indirect=True)
def test_every_mechanism_can_be_stepped_beside_another(steps):
    page = steps
    for name in PRESETS:
        page.select_option("#steps-beside", name)
        page.locator(f"#steps-right[data-mechanism='{name}'] svg.steps").wait_for()
        for step in range(LAST + 1):
            page.locator(".player input").nth(step).check(force=True)
            assert page.inner_text("#steps-right .words")
            assert "undefined" not in page.inner_text("#steps-right")
            assert "NaN" not in page.locator("#steps-right").inner_html()


def test_it_is_played_and_stepped_by_keys(steps):
    page = steps
    page.click("#steps-play")
    assert page.inner_text("#steps-play") == "Pause"
    page.locator("#steps-left .words", has_text="may see 6 of 8").wait_for()
    page.click("#steps-play")
    page.locator(".player input").nth(1).check(force=True)
    page.locator(".player input:checked").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#steps-left .words", has_text="Softmax").wait_for()
    page.wait_for_timeout(300)  # the address follows after a moment
    assert linked(page.url)["step"] == 2
    page.locator(".choices input:checked").first.focus()
    page.keyboard.press("ArrowLeft")
    assert "“the”" in page.get_attribute("#steps-left svg.steps", "aria-label")


def test_other_tokens_and_forms_are_computed(steps):
    page = steps
    page.fill("#steps-text", "to be or not to be")
    page.locator("#steps-left text", has_text="not").wait_for()
    page.locator("#steps-causal").uncheck()
    page.click("#steps-next")
    page.locator("#steps-left .words", has_text="may see 6 of 6").wait_for()
    page.fill("#steps-text", "to be")
    page.locator("#steps-error", has_text="4 to 16").wait_for()
    page.fill("#steps-text", "to be or not")
    page.locator("#steps-error").wait_for(state="hidden")


@pytest.mark.parametrize("beside", ["gqa", "gated_deltanet", "mla"])
def test_nothing_is_cut_on_a_phone(page, studio, shot, beside):
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    for step in range(LAST + 1):
        page.goto("about:blank")
        page.goto(studio.url + link("steps", right=beside, step=step))
        page.locator("#steps-right svg.steps").wait_for()
        assert_fits(page, 390)
        shown = page.locator("#steps-right svg .since:not(.later) > g")
        assert shown.count() == shown.locator("text").count()  # each cell has room for its number
    shot("steps-phone")


def test_the_picture_is_saved(steps):
    page = steps
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"token,key 1")):
        with page.expect_download() as download:
            page.click(f"#steps-left .save >> text={kind}")
        assert download.value.suggested_filename == f"standard-step-1.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(start)
