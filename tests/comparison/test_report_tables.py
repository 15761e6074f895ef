from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from suffice.comparison.console import print_report, summary
from suffice.comparison.report.sheet import rich_table
from suffice.comparison.report.tables import (
    count,
    interval_of,
    joules,
    loss,
    percent,
    scaled,
    seconds,
    size,
    tables,
    with_sd,
)
from suffice.comparison.results import Cell, read_cell, write_cell
from suffice.comparison.verdict import judge
from suffice.errors import ConfigError, DataError
from suffice.utils.records import decode, encode
from suffice.utils.statistics import summarise

from .synthetic import from_accuracies, make_cell, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]


def column_of(sheet, title: str) -> dict[tuple[str, str], str]:
    """Return the texts of a column by mechanism and heads."""
    place = sheet.columns.index(title)
    return {line.cells[:2]: line.cells[place] for line in sheet.lines if line.cells[1]}


def test_a_line_averages_over_seeds_and_finds_its_speed():
    results = realistic(heads=(4,), seeds=5)
    quality, _, cost, *_ = tables(results, judge(results))
    cells, key = results.select("efficient", 4), ("efficient", "4")
    mean = sum(cell.test_accuracy for cell in cells) / 5
    assert column_of(quality, "test acc ± sd")[key].startswith(f"{100 * mean:.2f} ± ")
    latency = sorted(results.speed("efficient", 4).latency)[7]
    assert column_of(cost, "latency")[key] == seconds(latency)
    ratios = np.divide(*(results.speed(n, 4).latency for n in ("efficient", "standard")))
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    assert column_of(cost, "ratio")[key] == f"{middle:.2f}x [{low:.2f}, {high:.2f}]"
    assert column_of(cost, "ratio")["standard", "4"] == "1.00x [1.00, 1.00]"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (scaled(999.4), "999"),
        (scaled(1_234_567_890), "1.23G"),
        (scaled(2.5e12), "2.50T"),
        (seconds(93.5), "93.5 s"),
        (seconds(3600), "3600 s"),
        (seconds(0.99999), "1.00 s"),
        (seconds(0.0123), "12.3 ms"),
        (size(3 * 2**30), "3.00 GiB"),
        (size(1023), "1023 B"),
        (size(1536), "1.50 KiB"),
        (joules(812.0), "812 J"),
        (joules(7_200.0), "7.20 kJ"),
        (count(66048), "66,048"),
        (percent(0.97421), "97.42"),
        (loss(0.06249), "0.062"),
        (loss(2.9), "2.90"),
        (with_sd(summarise([0.974]), percent), "97.40"),
        (with_sd(summarise([0.974, 0.978]), percent), "97.60 ± 0.28"),
        (interval_of(summarise([0.974]), percent), "-"),
    ],
)
def test_numbers_carry_their_digits_and_their_unit(text, wanted):
    assert text == wanted


# Printed.


def printed(results, width=100, **options) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=bool(options), **options)
    print_report(results, judge(results), console, whole=True)
    return stream.getvalue()


def test_a_name_is_never_read_as_markup():
    text = printed(from_accuracies({"standard": BASE, "[red]x[/]": BASE}))
    assert "[red]x[/]" in text


def test_heads_and_numbers_are_never_broken_however_long_names_are():
    long = "grouped_query_attention_with_sinks"
    results = from_accuracies({"standard@4": BASE, "standard": BASE, f"{long}@4": BASE})
    sheet = summary(results, judge(results))
    stream = StringIO()
    Console(file=stream, width=80).print(rich_table(sheet, lines=None))
    head, *lines = stream.getvalue().splitlines()
    assert head.split() == ["mechanism", "points", "95%", "CI", "verdict", "parameters", "time"]
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines)
    assert all(cell in shown for line in sheet.lines for cell in line.cells[1:])


@pytest.mark.parametrize(
    ("shift", "colour"), [(0.0, "\x1b[32msuffices"), (-0.05, "\x1b[31mdoes not suffice")]
)
def test_verdicts_are_coloured(shift, colour):
    results = from_accuracies({"standard": BASE, "a": [v + shift for v in BASE]})
    assert colour in printed(results, color_system="standard")


# Further scores.

SIGNATURE = "nrefs:1|tok:none|version:2.6.0"


def test_scores_survive_the_disk(tmp_path):
    cell = replace(make_cell(), scores={"bleu": 20.0}, signatures={"bleu": SIGNATURE})
    write_cell(tmp_path, cell)
    assert read_cell(tmp_path, *cell.key) == cell
    odd = replace(cell, scores={"perplexity": float("inf")}, signatures={})
    write_cell(tmp_path, odd)
    assert read_cell(tmp_path, *cell.key) == odd


def test_a_record_from_before_there_were_scores_is_read():
    given = encode(make_cell().__dict__)
    del given["scores"], given["signatures"]
    cell = decode(Cell, given, where="old.json")
    assert (cell.scores, cell.signatures) == ({}, {})


def test_scores_that_are_no_numbers_are_refused():
    given = encode(make_cell().__dict__)
    with pytest.raises(DataError, match=r"old.json: scores: bleu is 'many'; it must be a number"):
        decode(Cell, {**given, "scores": {"bleu": "many"}}, where="old.json")
    with pytest.raises(ConfigError, match="signatures of bleu"):
        replace(make_cell(), signatures={"bleu": SIGNATURE})
