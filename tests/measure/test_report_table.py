from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from suffice.measure.report.tables import print_report, tables
from suffice.measure.sentence import notes, sentence
from suffice.measure.verdict import judge

from .synthetic import from_accuracies, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]


def printed(results, width=100, **options) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=bool(options), **options)
    print_report(results, judge(results), console)
    return stream.getvalue()


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "mnist", "recipe": "mnist_v2"},
        {"task": "cifar100", "recipe": "cifar", "top5": True},
        {"task": "digits", "recipe": "digits_vit"},
    ],
)
def test_at_100_columns_every_cell_is_whole(changes):
    results = realistic(**changes)
    text = printed(results)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    quality = text[: text.index("Test accuracy against")]
    for name, heads in results.pairs():
        starts = [line for line in quality.splitlines() if line.split()[:2] == [name, str(heads)]]
        assert len(starts) >= 1
    for cut in ("super_attent\n", "± \n"):
        assert cut not in text
    for line in quality.splitlines():
        if line.startswith("standard"):
            assert line.count("(") == line.count(")") >= 2


def test_verdict_and_notes_stand_below_the_tables():
    results = realistic()
    verdict = judge(results)
    text = joined(printed(results))
    assert joined(sentence(verdict, results)) in text
    for note in notes(verdict, results):
        assert f"- {joined(note)}" in text


def test_a_name_is_never_read_as_markup():
    text = printed(from_accuracies({"standard": BASE, "[red]x[/]": BASE}))
    assert "[red]x[/]" in text


def test_paper_lines_are_dim_and_indented():
    text = printed(realistic(heads=(4,), task="mnist", recipe="m"), color_system="standard")
    lines = [line for line in text.splitlines() if "98.62" in line]
    assert len(lines) == 1
    assert "\x1b[2m  paper" in lines[0]


@pytest.mark.parametrize(
    ("shift", "colour"), [(0.0, "\x1b[32msuffices"), (-0.05, "\x1b[31mdoes not suffice")]
)
def test_verdicts_are_coloured(shift, colour):
    results = from_accuracies({"standard": BASE, "a": [v + shift for v in BASE]})
    assert colour in printed(results, color_system="standard")


def test_an_empty_table_is_left_out():
    results = from_accuracies({"standard": BASE})
    assert [str(table.title) for table in tables(results, judge(results))] == [
        "Quality, train",
        "Quality, test",
        "Cost",
    ]
