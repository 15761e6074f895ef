"""`suffice studio`: the words it takes, and the bad values it refuses."""

from __future__ import annotations

import os
import urllib.request
import webbrowser
from importlib.metadata import entry_points

import pytest

from suffice_studio import cli as module
from tests.cli.bad_values import models, place, wrong_answers
from tests.cli.conftest import suffice
from tests.cli.introspect import parameters
from tests.cli.test_bad_values import STEP

__all__ = ["models", "place", "suffice"]

pytestmark = pytest.mark.skipif(
    not entry_points(group="suffice.verbs", name="studio"), reason="suffice-studio is not installed"
)
EMPTY = {("studio --results", n) for n in ("empty folder", "nothing", "here", "root", "foreign")}


@pytest.fixture
def interrupted(monkeypatch):
    """Look at what is served, and end as Ctrl-C does."""
    seen = {}

    def wait():
        if "opened" in seen:
            seen["page"] = urllib.request.urlopen(seen["opened"], timeout=10).read().decode()
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", lambda url: seen.update(opened=url))
    monkeypatch.setattr(module, "_wait_for_interrupt", wait)
    return seen


def test_the_page_is_served_until_it_is_stopped(suffice, interrupted, tmp_path):
    result = suffice("studio", "--results", tmp_path, "--checkpoints", tmp_path)
    assert result.exit_code == 130
    assert interrupted["opened"].startswith("http://127.0.0.1:")
    assert f"studio: {interrupted['opened']} (Ctrl-C stops it)" in result.message
    assert "suffice studio" in interrupted["page"]


def test_no_browser_is_opened_where_none_is_wanted(suffice, interrupted):
    assert suffice("studio", "--no-open").exit_code == 130
    assert "opened" not in interrupted


def test_the_page_is_exported(suffice, tmp_path):
    result = suffice("studio", "--export", tmp_path / "site")
    assert result.exit_code == 0
    assert f"wrote {tmp_path / 'site' / 'index.html'}" in result.message
    assert "<title>suffice studio</title>" in (tmp_path / "site" / "index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--export", "site", "--port", "8000"],
            "error: --export writes a page and serves nothing",
        ),
        (["--export", "site", "--no-open"], "error: --export writes a page and serves nothing"),
        (["--results", "absent"], "error: --results absent"),
        (["--checkpoints", "absent"], "error: --checkpoints absent"),
        (["--checkpoints", "hf:name"], "error: 'hf:name'"),
        (["--port", "99999"], "error: --port 99999: give 1 to 65535"),
    ],
)
def test_wrong_words_are_refused(suffice, words, said):
    result = suffice("studio", *words)
    assert result.exit_code == 2
    assert said in result.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
def test_bad_values_are_refused_in_a_sentence(step, suffice, place):
    values = [(parameter, number) for number, parameter in enumerate(parameters(["studio"]))]
    short = ["--export", "new"]
    assert wrong_answers(suffice, place, short, values, step=step, legal=EMPTY) == []
