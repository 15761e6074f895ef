"""The lesson: each page has its parts, its numbers are printed, its pictures run in the page."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
import torch

from docs import build
from studio.tests.links import linked
from suffice.cli import main
from suffice.presets import preset

LESSON = build.FOLDER / "learn"
PAGES = sorted(path.stem for path in LESSON.glob("*.md"))
MAX_LINES = 92
COMMAND = re.compile(r"^```text\n\$ (suffice .+)\n((?:.*\n)*?)```$", re.MULTILINE)
STUDIO = re.compile(r"""<a class="studio"[^>]* data-tab="(\w+)" data-state='([^']+)'>""")


def text_of(name):
    return (LESSON / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_page_is_short_with_one_picture_to_try_and_one_question(name):
    text = text_of(name)
    assert len(text.splitlines()) <= MAX_LINES
    assert text.count("\n## Try it\n") == text.count("\n## Question\n") == 1
    assert text.count("<summary>Answer</summary>") == 1
    assert len(STUDIO.findall(text)) + text.count('class="cache-steps"') == 1


def test_pages_are_numbered_in_the_order_of_the_navigation():
    names = re.findall(r"learn/(\w+)\.md", build.SITE.read_text("utf-8"))
    numbers = [int(re.search(r"^# (\d)\. ", text_of(name), re.MULTILINE)[1]) for name in names]
    assert sorted(names) == PAGES
    assert numbers == list(range(1, 8))


@pytest.mark.parametrize(
    ("command", "output"), [shown for name in PAGES for shown in COMMAND.findall(text_of(name))]
)
def test_command_prints_what_the_page_shows(command, output, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == output.split()


def test_the_cache_grows_by_the_bytes_of_a_llama():
    layer = preset("standard", 4096, 32, causal=True)
    assert f'data-bytes="{32 * layer.state_bytes(1, dtype=torch.float16)}"' in text_of("cache")


@pytest.mark.lint
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", [name for name in PAGES if STUDIO.search(text_of(name))])
def test_the_studio_opens_in_the_page_as_the_page_says(name, width, site, page):
    [(tab, state)] = STUDIO.findall(text_of(name))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((site / "learn" / f"{name}.html").as_uri())
    page.locator("iframe.studio").scroll_into_view_if_needed()
    panel = page.frame_locator("iframe.studio").locator(f"#panel-{tab}")
    panel.locator("h2").first.wait_for()
    page.wait_for_timeout(600)  # the address is written a moment after the last change
    address = next(frame.url for frame in page.frames if "/studio/" in frame.url)
    opened = linked(address)
    assert f"#{tab}?" in address
    assert {key: opened[key] for key in json.loads(state)} == json.loads(state)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.lint
def test_the_cache_is_written_token_by_token(site, page):
    page.goto((site / "learn" / "cache.html").as_uri())
    for _ in range(3):
        page.get_by_role("button", name="Next token").click()
    counts = page.locator(".cache-steps [aria-live]")
    assert "4 tokens: 4 pairs of k and v computed, 2 MiB" in counts.inner_text()
    assert page.locator(".cells .read").count() == 3
    page.get_by_label("KV cache").uncheck()
    for _ in range(3):
        page.get_by_role("button", name="Next token").click()
    assert "4 tokens: 10 pairs of k and v computed, 0 MiB" in counts.inner_text()
    assert page.locator(".cells .computed").count() == 4
