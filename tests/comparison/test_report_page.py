from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from suffice.comparison.report.page import inline_svg, page, write_report
from suffice.comparison.report.plots import FIGURES, draw_figures
from suffice.comparison.verdict import judge
from suffice.utils.canvas import colours_by_theme

from .synthetic import from_accuracies, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checked(HTMLParser):
    """Reads a page and notes every tag, id, reference and text; fails on wrong nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def make_page(results) -> str:
    verdict = judge(results)
    return page(results, verdict, draw_figures(results, verdict))


@pytest.fixture(scope="module")
def results():
    return realistic(task="mnist", recipe="mnist_v2", title="ViT on MNIST")


@pytest.fixture(scope="module")
def text(results):
    return make_page(results)


@pytest.fixture(scope="module")
def checked(text):
    return Checked(text)


def test_the_page_holds_every_figure_with_words_for_the_blind(checked):
    drawings = [attrs for tag, attrs in checked.tags if tag == "svg"]
    assert len(drawings) == len(FIGURES) == checked.count("figure")
    for attrs, plot in zip(drawings, FIGURES.values(), strict=True):
        assert attrs["role"] == "img"
        assert attrs["aria-label"] == f"{plot.title}. {plot.caption}"


def test_the_page_is_a_whole_document(text, checked):
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert checked.count("h1") == checked.count("main") == checked.count("title") == 1
    levels = [int(tag[1]) for tag, _ in checked.tags if re.fullmatch("h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))


def test_the_page_needs_nothing_from_outside(text, checked):
    assert checked.count("script") == checked.count("link") == checked.count("img") == 0
    for _, attrs in checked.tags:
        for name in ("src", "href", "xlink:href"):
            assert attrs.get(name, "#").startswith("#")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_identifiers_are_unique_and_every_reference_is_met(text, checked):
    identifiers = [attrs["id"] for _, attrs in checked.tags if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))
    wanted = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    wanted |= {attrs["aria-labelledby"] for _, attrs in checked.tags if "aria-labelledby" in attrs}
    assert wanted
    assert wanted <= set(identifiers)


def test_every_colour_follows_the_theme(text):
    assert "prefers-color-scheme: dark" in text
    body = text[text.index("<body>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", body) == []
    used = set(re.findall(r"var\((--c[0-9a-f]{6})\)", text))
    assert used <= {f"--c{light[1:]}" for light in colours_by_theme()}
    head = text[: text.index("</head>")]
    for light, dark in colours_by_theme().items():
        assert f"--c{light[1:]}: {light};" in head
        assert f"--c{light[1:]}: {dark};" in head


def test_equal_results_give_equal_pages(results, text):
    assert make_page(results) == text


def test_hostile_text_stays_text():
    name = '<script>alert("x")</script>&amp;#1f2430 id="y"'
    results = from_accuracies(
        {"standard": BASE, name: BASE},
        title="<img src=x onerror=alert(1)>",
        task="</title><script>",
        recipe="<b>",
        command="suffice compare --out '<i>'",
        started="<u>",
        commit="<s>",
        machine={"<em>": "<strong>", "memory_bytes": 2**30},
        versions={"python": "<code>"},
    )
    text = make_page(results)
    checked = Checked(text)
    for tag in ("script", "img", "b", "i", "u", "s", "em", "strong"):
        assert checked.count(tag) == 0
    assert checked.text.count(name) >= 6  # notes, three tables, figures
    assert "<img src=x onerror=alert(1)>" in checked.text
    assert "memory 1.00 GiB" in checked.text


def test_only_tags_are_adapted():
    results = from_accuracies({"standard": BASE, '#1f2430 id="q" url(#z)': BASE})
    figure = draw_figures(results, judge(results))["tradeoff"]
    drawing = inline_svg(figure, "plot", 'says "a" & <b>')
    assert '#1f2430 id="q" url(#z)</text>' in drawing
    assert 'aria-label="says &quot;a&quot; &amp; &lt;b&gt;"' in drawing
    assert 'id="plot-figure_1"' in drawing
    assert drawing.startswith("<svg ")
    assert drawing.rstrip().endswith("</svg>")


def test_the_report_is_written_with_its_figures(tmp_path, results):
    path = write_report(results, judge(results), tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(
        ["report.html", *(f"{name}.png" for name in FIGURES)]
    )
