"""Names of others are text in every page: no markup of theirs becomes an element or runs."""

from __future__ import annotations

import dataclasses
from urllib.parse import quote

import pytest

from studio.tests.models import write_lm
from suffice.comparison import judge, report
from suffice.comparison.results import write_results
from suffice_studio import Folders, export, served
from tests.comparison.synthetic import realistic

RUNS = "window.ran=(window.ran||0)+1"
NAMES = {
    "markup": f"<img src=x onerror={RUNS}></script><script>{RUNS}</script>--><b onclick={RUNS}>",
    "attribute": f"\"'><svg onload={RUNS}>",
    "link": f"javascript:{RUNS}",
}


def _named(name):
    """A comparison in which somebody chose every name that is drawn."""

    def renamed(cells):
        return tuple(
            dataclasses.replace(cell, mechanism=name) if cell.mechanism == "efficient" else cell
            for cell in cells
        )

    results = realistic(seeds=3)
    return dataclasses.replace(
        results,
        title=name,
        command=name,
        cells=renamed(results.cells),
        speeds=renamed(results.speeds),
        machine={**results.machine, "cpu": name},
        versions={**results.versions, "torch": name},
    )


def _nothing_ran(page):
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert page.locator("img[src=x], svg[onload], b[onclick]").count() == 0
    assert page.locator("a[href^='javascript:']").count() == 0


@pytest.mark.filterwarnings("ignore:constrained_layout")
@pytest.mark.parametrize("kind", NAMES)
def test_a_report_shows_names_as_text(kind, page, tmp_path):
    results = _named(NAMES[kind])
    path = report.write_report(results, judge(results), tmp_path)
    page.goto(path.as_uri())
    assert NAMES[kind] in page.inner_text("body")
    _nothing_ran(page)


@pytest.mark.parametrize("kind", NAMES)
def test_the_studio_shows_names_as_text(kind, page, tmp_path):
    name = NAMES[kind].replace("/", "_")  # of a folder
    write_results(tmp_path / name / "results.json", _named(NAMES[kind]))
    write_lm(tmp_path / "models" / name)
    with served(Folders(results=(tmp_path,), checkpoints=tmp_path / "models")) as studio:
        page.goto(studio.url + "#compare")
        page.get_by_role("button", name=name, exact=True).click()
        page.locator("#comparison h2").wait_for()
        assert NAMES[kind] in page.inner_text("#comparison")
        _nothing_ran(page)
        page.goto(studio.url + "#attention")
        page.get_by_text(name).first.wait_for(state="attached")
        _nothing_ran(page)
        page.goto(studio.url + "#" + quote(name) + "&x=" + quote(NAMES[kind]))
        _nothing_ran(page)
        page.goto("about:blank")


@pytest.mark.parametrize("kind", NAMES)
def test_an_exported_page_shows_names_as_text(kind, page, tmp_path):
    name = NAMES[kind].replace("/", "_")
    write_results(tmp_path / "runs" / name / "results.json", _named(NAMES[kind]))
    path = export(tmp_path / "site", Folders(results=(tmp_path / "runs",)))
    page.goto(path.as_uri() + "#compare")
    page.get_by_role("button", name=name, exact=True).click()
    page.locator("#comparison h2").wait_for()
    assert NAMES[kind] in page.inner_text("#comparison")
    _nothing_ran(page)
