"""The calculator as a user meets it."""

from __future__ import annotations

import csv
import json
import re

import pytest

from studio.tests.links import link, linked
from suffice.choose.fits.calculator import state_bytes
from tests.choose.fits.decoder import EMPTY, PUBLISHED

THREE = {
    "models": [{"name": name} for name in ("Llama 2 7B", "Mistral 7B", "TinyLlama 1.1B")],
    "length": 4096,
    "memory": "8 GB",
}


@pytest.fixture
def calculator(request, page, studio, static):
    """The tab, served by the program unless the test is parametrised with "static"."""
    served = getattr(request, "param", "served") == "served"
    page.goto((studio.url if served else static.as_uri()) + link("calculator", **THREE))
    page.wait_for_selector("#calculator-table")
    return page


def rows(page) -> dict[str, list[str]]:
    """Return the table's cells by the name of the model."""
    return {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#calculator-table tbody tr").all()
    }


def test_published_models_have_their_published_figures(calculator):
    table = rows(calculator)
    assert table["Llama 2 7B"][2] == "2 GiB"  # 4096 tokens, the published 0.5 MiB each
    assert table["Llama 2 7B"][3].split() == ["12.6", "GiB", "6.74B"]
    assert table["Mistral 7B"][2] == "512 MiB"


@pytest.mark.parametrize("calculator", ["served", "static"], indirect=True)
def test_article_is_reproduced(calculator, shot):
    page = calculator
    page.select_option("#add-model", "article")
    page.fill("#length-number", "2048")
    name = "The article's calculator"
    page.locator("#calculator-table tr", has_text=name).locator("td", has_text="512 MiB").wait_for()
    cells = rows(page)[name]
    assert cells[0] == "16 MiB"
    assert cells[1].split("\n") == ["256 KiB", "8 KiB in each of 32"]
    assert cells[2] == "512 MiB"
    title = page.locator("#calculator-table tr", has_text=name).locator("td").nth(2)
    assert title.get_attribute("title") == "536,870,912 B"
    page.click("#article summary")
    assert "8192 B are a token in one layer, not in the model" in page.inner_text("#article")
    assert page.locator("#article tbody tr").count() == 24
    if not page.url.startswith("file"):
        shot("calculator-article")


def test_a_composition_is_typed(calculator, models):
    page = calculator
    page.fill("#model-num_kv_heads", "8")
    page.fill("#model-window", "1024")
    page.fill("#model-full_every", "4")
    page.fill("#model-name", "mine")
    page.locator("#calculator-table tr", has_text="mine").wait_for()
    page.locator("#calculator-table tr", has_text="× 24 window").wait_for()
    cells = rows(page)["mine"]
    sizes = {"num_kv_heads": 8, "window": 1024, "full_every": 4}
    state = state_bytes(EMPTY | models["Llama 2 7B"] | sizes, 4096)
    assert cells[2] == f"{state / 2**20:.0f} MiB"
    assert "× 8 full" in cells[0]


def test_wrong_values_are_refused(calculator):
    page = calculator
    page.fill("#model-layers", "many")
    page.locator("#calculator-error", has_text="marked field").wait_for()
    assert page.get_attribute("#model-layers", "aria-invalid") == "true"
    page.fill("#model-layers", "32")
    page.fill("#model-num_heads", "5")
    page.locator(".refused", has_text="num_heads=5 does not divide d_model=4096").wait_for()
    page.fill("#memory", "much")
    page.locator("#calculator-error", has_text='memory "much" is no size').wait_for()
    assert "Traceback" not in page.content()
    assert page.locator(".found.stale").evaluate("(node) => node.inert")
    assert page.inner_text(".shown") == ""
    page.fill("#memory", "8 GiB")
    page.locator(".found:not(.stale)").wait_for()


def test_memory_decides_what_fits(calculator, models):
    page = calculator
    page.fill("#memory", "24 GB")
    page.locator("#calculator-table tr", has_text="memory for any length").wait_for()
    table = rows(page)
    request = {"models": [models["Llama 2 7B"]], "length": 4096, "memory": 24 * 10**9}
    longest = page.evaluate("(request) => window.studio.calculate(request)", request)[0]["longest"]
    assert longest > 4096
    assert table["Llama 2 7B"][6].split("\n") == [
        "fits",
        "up to 4,096 tokens, its trained length",
        f"memory for {longest:,}",
    ]
    page.fill("#memory", "")
    page.locator(".limit").first.wait_for(state="detached")
    assert rows(page)["Llama 2 7B"][6].split("\n") == ["–", "trained on 4K tokens"]


def test_each_program_has_its_own_column(calculator):
    page = calculator
    heads = page.locator("#engine-table thead th").all_inner_texts()
    assert heads[1] == "suffice"
    assert [head.split()[0] for head in heads[2:]] == ["llama.cpp", "vllm"]
    page.fill("#length-number", "32000")
    cells = page.locator("#engine-table tr", has_text="Mistral 7B").locator("td")
    page.locator("#engine-table td", has_text="576 MiB").wait_for()  # 4096 + 512 cells
    assert cells.all_inner_texts()[0] == "512 MiB"
    page.fill("#model-sinks", "4")
    page.fill("#model-window", "256")
    page.locator("#engine-table tr", has_text="Llama 2 7B").locator(
        "td", has_text="–"
    ).first.wait_for()


def test_a_curve_has_a_ring_at_its_trained_length(calculator):
    rings = calculator.locator(".end-mark title")
    assert rings.all_text_contents() == ["Llama 2 7B: 4K", "Mistral 7B: 32K", "TinyLlama 1.1B: 2K"]


def test_the_slider_moves_with_the_keyboard(calculator):
    page = calculator
    page.focus("#length")
    page.keyboard.press("End")
    page.locator("output.shown", has_text="1,048,576").wait_for()
    page.locator("#calculator-table tr", has_text="512 GiB").wait_for()
    assert page.input_value("#length-number") == "1048576"


def test_models_are_added_and_removed(calculator):
    page = calculator
    page.click("[aria-label='Remove Mistral 7B']")
    page.select_option("#add-model", "Gemma 3 1B")
    page.locator("#calculator-table tr", has_text="× 22 window").wait_for()
    assert list(rows(page)) == ["Llama 2 7B", "TinyLlama 1.1B", "Gemma 3 1B"]
    for _ in range(6):
        page.select_option("#add-model", "copy")
    page.locator("#calculator-full", has_text="At most 8 models").wait_for()
    assert page.locator(".models li").count() == 8
    page.click("[aria-label='Remove Gemma 3 1B']")
    page.locator("#calculator-full").wait_for(state="hidden")


def test_a_link_shows_the_same_page_again(calculator):
    page = calculator
    page.fill("#model-window", "1024")
    page.fill("#length-number", "9000")
    page.fill("#memory", "3 GiB")
    page.wait_for_function("location.hash.length > 120 && document.querySelector('.shown')")
    page.wait_for_timeout(400)
    address, table = page.url, rows(page)
    assert linked(address)["models"][0] == {"name": "Llama 2 7B", "window": 1024}
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#calculator-table")
    assert rows(page) == table
    assert page.input_value("#memory") == "3 GiB"
    assert page.input_value("#model-window") == "1024"


@pytest.mark.parametrize("state", ["!!", "e30", "bnVsbA", "eyJtb2RlbHMiOlt7Im5hbWUiOjV9LG51bGxdfQ"])
def test_a_damaged_link_opens_the_usual_page(page, static, state):
    page.goto(static.as_uri() + "#calculator?" + state)
    page.wait_for_selector("#calculator-table")
    assert len(rows(page)) >= 1


@pytest.mark.parametrize("published", ["Llama 3.1 8B", "Gemma 3 12B", "Qwen3 30B-A3B"])
def test_a_config_json_is_the_published_model(calculator, published):
    page = calculator
    config = PUBLISHED[published]["config"]
    name = config["model_type"].removesuffix("_text")
    if name == "gemma3":  # a model with pictures
        config = {"model_type": name, "text_config": config}
    page.click("#config-box summary")
    page.fill("#config-json", json.dumps(config))
    page.click("#config-add")
    page.locator("#calculator-table th", has_text=re.compile(f"^{name}")).wait_for()
    page.select_option("#add-model", published)
    page.locator("#calculator-table th", has_text=published).wait_for()
    table = rows(page)
    mine = next(cells for title, cells in table.items() if title.startswith(name))
    for column in (0, 1, 2):  # of a layer, a token, the KV cache
        assert mine[column] == table[published][column]
    parameters = 1
    assert mine[3].split("\n")[parameters:] == table[published][3].split("\n")[parameters:]


def test_charts_are_saved_as_files(calculator, tmp_path, models):
    page = calculator
    saved = {}
    for name, kind in (("what fits", "SVG"), ("what fits", "PNG"), ("the table", "CSV"),
                       ("the KV cache over length", "CSV")):  # fmt: skip
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {name} as {kind}", exact=True).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        saved[name, kind] = path.read_bytes()
    drawn = saved["what fits", "SVG"].decode()
    assert drawn.startswith("<svg ")
    assert "Llama 2 7B" in drawn
    assert "var(" not in drawn
    assert "class=" not in drawn, "a file has no style sheet"
    assert saved["what fits", "PNG"].startswith(b"\x89PNG")
    table = csv.DictReader(saved["the table", "CSV"].decode().splitlines())
    found = {row["model"]: row for row in table}
    state = state_bytes(EMPTY | models["Llama 2 7B"], 4096)
    assert int(found["Llama 2 7B"]["KV cache, B"]) == state
    assert len(saved["the KV cache over length", "CSV"].splitlines()) == 15
