"""The tabs that a program must serve: comparisons, attention maps."""

from __future__ import annotations

import re

import pytest

from studio.tests.models import picture
from suffice_studio.comparisons import describe


@pytest.fixture
def compare(page, full):
    page.goto(full.url + "#compare")
    page.get_by_role("button", name="mine").click()
    page.locator(".verdict").wait_for()
    return page


def test_a_comparison_is_displayed_completely(compare, results, shot):
    page, expected = compare, describe(results)
    assert page.inner_text(".verdict") == expected["sentence"]
    assert page.locator("#comparison h2").inner_text() == results.title
    assert page.locator(".point").count() == len(expected["points"])
    assert page.locator(".point.on-front").count() == sum(
        one["front"] for one in expected["points"]
    )
    titles = page.locator("#comparison h3").all_inner_texts()
    assert {
        "Cost against quality",
        "Over epochs",
        *(one["title"] for one in expected["tables"]),
    } <= set(titles)
    assert page.locator("#comparison table tbody tr").count() == sum(
        len(one["lines"]) for one in expected["tables"]
    )
    shot("compare")


def test_cost_and_measure_are_chosen(compare, results):
    page = compare
    page.select_option("#compare-cost", "latency")
    page.locator(".chart .name", has_text="seconds of one batch").wait_for()
    assert page.locator(".point.on-front").count() == sum(
        one["front"] for one in describe(results, cost="latency")["points"]
    )
    page.select_option("#compare-curve", "train_loss")
    assert page.locator(".curves .chart .name", has_text="training loss").count() == 2


def test_published_results_are_opened(compare):
    page = compare
    page.get_by_role("button", name="IMDB reviews, last 32 words").click()
    page.locator("#comparison h2", has_text="IMDB reviews, last 32 words").wait_for()
    assert page.locator(".point").count() == page.locator(".legend li").count() == 6
    page.get_by_label("Draw all 36 mechanisms").check()
    page.locator(".legend li").nth(35).wait_for()
    assert page.locator(".point").count() == 36


def test_the_page_opens_on_reviews_of_films_where_no_folder_was_named(page, static):
    page.goto(static.as_uri() + "#compare")
    page.locator("#comparison h2", has_text="IMDB reviews, 1 block").wait_for()
    assert page.locator(".legend").first.locator("li").count() == 4


def test_a_damaged_file_is_refused(compare):
    page = compare
    page.get_by_role("button", name="broken").click()
    page.locator("#compare-error", has_text="is truncated or not JSON").wait_for()
    assert page.locator("#comparison").inner_text() == ""
    page.get_by_role("button", name="Refresh").click()
    page.get_by_role("button", name="mine").click()
    page.locator(".verdict").wait_for()
    page.locator("#compare-error").wait_for(state="hidden")


def test_maps_of_a_text(page, full, shot):
    page.goto(full.url + "#attention")
    page.select_option("#checkpoint", "models/letters")
    page.fill("#attention-text", "abc, def.")
    page.click("#look")
    page.locator("#map").wait_for()
    assert page.locator(".thumb").count() == 4
    page.evaluate("document.querySelector('#map').dataset.layer = 1")
    page.get_by_role("button", name="Layer 2, head 2").click()
    page.locator("#map:not([data-layer])").wait_for()  # the other head's map has arrived
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    page.locator("#map-hover", has_text="looks at “b” (1)").wait_for()
    assert "its row sums to 1.0000" in page.inner_text("#map-hover")
    assert page.locator("#map-read span").count() == 9
    assert page.locator("#map .tick", has_text="a").count() >= 2, "the axes have the tokens"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the map of Layer 2, head 2 as CSV").click()
    assert download.value.suggested_filename.endswith("layer-2-head-2.csv")
    page.get_by_role("button", name="Layer 1, mean of the heads").click()
    page.locator("h3", has_text="Layer 1, mean of the heads").wait_for()
    page.wait_for_timeout(400)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.locator("#map").wait_for()
    shot("attention")
    page.fill("#attention-text", "xyz")
    page.click("#look")
    page.locator("#attention-error").wait_for()
    assert page.locator(".attention.stale").count() == 1
    assert "Traceback" not in page.content()


def test_maps_of_a_picture(page, full, tmp_path, shot):
    page.goto(full.url + "#attention")
    page.select_option("#checkpoint", "models/pictures")
    page.locator("#look").wait_for()
    page.click("#look")
    page.locator("#attention-error", has_text="give a picture").wait_for()
    picture(tmp_path / "own.png")
    page.set_input_files("#picture", tmp_path / "own.png")
    page.wait_for_timeout(100)
    page.click("#look")
    page.locator("#map").wait_for()
    assert page.locator(".patches rect").count() == 16
    page.get_by_label("Effective: with the mixing").check()
    page.locator("#map").wait_for()
    page.locator("#map-hover", has_text="its row sums to").wait_for()
    shot("attention-picture")


def test_generated_tokens_are_marked(page, full, shot):
    page.goto(full.url + "#attention")
    page.select_option("#checkpoint", "models/letters")
    page.fill("#attention-text", "abc, def.")
    page.fill("#new-tokens", "6")
    page.click("#look")
    page.locator("#map").wait_for()
    assert page.locator("#map-read span").count() == 9 + 6
    assert page.locator("#map-read span.generated").count() == 6
    assert page.locator("#map .generated").count() == 1
    assert page.locator("#map .of-model").count() == 2 * 6
    assert "(14, generated)" in page.inner_text("#map-hover")
    page.focus("#map")
    for _ in range(6):
        page.keyboard.press("ArrowUp")
    assert "(8) looks at" in page.inner_text("#map-hover")
    shot("attention-generated")


def test_two_models_are_compared(page, full, shot):
    page.goto(full.url + "#attention")
    page.select_option("#checkpoint", "models/letters")
    page.fill("#attention-text", "abc, def.")
    page.select_option("#against", "models/window")
    page.click("#look")
    page.locator("#map image").nth(2).wait_for()
    assert page.locator("#map .row-name").all_text_contents() == [
        "models/letters",
        "models/window",
        "the first less the second",
    ]
    assert page.locator("#map-read figure").count() == 3
    told = page.inner_text("#map-hover")
    first, second, moved = map(
        float, re.findall(r": ([\d.]+) and ([\d.]+), .* of ([-−\d.]+);", told)[0]
    )
    assert (first > 0, second) == (True, 0.0), "the window hides the first key from the last query"
    assert moved == pytest.approx(first, abs=1e-4)
    assert 0 < float(told.rsplit(": ", 1)[1].rstrip(".")) <= 1
    named = page.get_by_role("button", name="Layer 1, head 1: total variation").get_attribute(
        "title"
    )
    shown = page.locator(".large .hint").inner_text()
    assert named.rsplit(" ", 1)[1] in shown, "the thumbnail and the map have the same number"
    shot("attention-compared")
    page.select_option("#against", "models/letters")
    page.click("#look")
    page.locator(".large .hint", has_text="mean over queries: 0.0000").wait_for()
    page.select_option("#against", "models/pictures")
    page.click("#look")
    page.locator("#attention-error", has_text="vocabulary_size").wait_for()


def test_a_patch_of_the_picture_is_chosen_as_the_query(page, full, tmp_path, shot):
    page.goto(full.url + "#attention")
    page.select_option("#checkpoint", "models/classed")
    page.locator("#picture").wait_for()
    picture(tmp_path / "own.png")
    page.set_input_files("#picture", tmp_path / "own.png")
    page.wait_for_timeout(100)
    page.click("#look")
    page.locator("#map").wait_for()
    assert "“class token” (0) looks at" in page.inner_text("#map-hover")
    page.locator(".patches rect").nth(4 + 2).click()
    page.locator("#map-hover", has_text="“row 1, column 2” (7) looks at").wait_for()
    chosen = page.locator(".patches rect.own")
    assert [chosen.get_attribute(name) for name in ("x", "y")] == ["2", "1"]
    values = page.locator(".patches rect title").all_text_contents()
    opacity = [
        float(one.get_attribute("fill-opacity")) for one in page.locator(".patches rect").all()
    ]
    weights = [float(value.rsplit(": ", 1)[1]) for value in values]
    assert values[6].startswith("row 1, column 2: ")
    assert sorted(range(16), key=opacity.__getitem__)[-1] == max(range(16), key=weights.__getitem__)
    page.get_by_role("button", name="class token: ").click()
    page.locator("#map-hover", has_text="“class token” (0) looks at").wait_for()
    shot("attention-patches")


def test_missing_folders_are_explained(page, studio):
    page.goto(studio.url + "#attention")
    page.locator(".inputs", has_text="--checkpoints FOLDER").wait_for()
    assert page.locator("#checkpoint option").all_inner_texts() == ["no folder was chosen"]


TABS = ("Calculator", "Patterns", "Steps", "Compare", "Attention")


def test_the_page_is_dark_where_its_reader_wants_that(page, studio):
    page.emulate_media(color_scheme="dark")
    page.goto(studio.url)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(17, 20, 26)"


def test_tabs_move_with_the_keyboard(page, studio):
    page.goto(studio.url)
    page.get_by_role("tab", name="Calculator").focus()
    for name in (*TABS[1:], TABS[0]):
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", selected=True).inner_text() == name
    page.keyboard.press("End")
    assert page.get_by_role("tab", selected=True).inner_text() == TABS[-1]
    assert page.evaluate("location.hash").startswith("#attention")
