from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from suffice.data.survey import Survey
from suffice.errors import ConfigError, DataError
from suffice.measure.answers import Answers
from suffice.measure.console import print_report
from suffice.measure.report.tables import (
    bounds,
    count,
    joules,
    percent,
    scaled,
    seconds,
    size,
    spread,
    tables,
)
from suffice.measure.results import Cell, Results, Speed, read_cell, write_cell
from suffice.measure.sentence import notes
from suffice.measure.statistics import summarise
from suffice.measure.verdict import judge
from suffice.utils.records import decode, encode

from .synthetic import from_accuracies, make_cell, make_results, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]


def sheets_of(results):
    """Return the tables, that of the training split first; what training costs has its own test."""
    sheets = tables(results, judge(results))
    sheets = [sheet for sheet in sheets if not sheet.title.startswith("Cost to ")]
    return sorted(sheets, key=lambda sheet: not sheet.title.startswith("Quality, train"))


def column_of(sheet, title: str) -> dict[tuple[str, str], str]:
    """Return the texts of a column by mechanism and heads."""
    place = sheet.columns.index(title)
    return {line.cells[:2]: line.cells[place] for line in sheet.lines if line.cells[1]}


def test_one_line_per_mechanism_grouped_by_rising_heads():
    train, *_ = sheets_of(realistic(heads=(4, 1), seeds=3, epochs=3))
    names = ["standard", "optimised", "efficient", "super_attention"]
    assert list(column_of(train, "train acc")) == [(n, h) for h in "14" for n in names]
    assert train.caption.startswith("Mean over 3 seeds")


def test_a_line_averages_over_seeds_and_finds_its_speed():
    results = realistic(heads=(4,), seeds=5)
    _, quality, _, cost = sheets_of(results)
    cells, key = results.select("efficient", 4), ("efficient", "4")
    mean = sum(cell.test_accuracy for cell in cells) / 5
    assert column_of(quality, "test acc ± sd")[key].startswith(f"{100 * mean:.2f} ± ")
    latency = sorted(results.speed("efficient", 4).latency)[7]
    assert column_of(cost, "latency")[key] == seconds(latency)
    assert 0.55 < float(column_of(cost, "ratio")[key][:-1]) < 0.67
    assert column_of(cost, "ratio")["standard", "4"] == "1.00x"


def test_ranks_are_among_equal_heads_and_shared_by_equal_prints():
    accuracies = {"standard": [0.9, 0.9], "a": [0.95, 0.95], "b": [0.900004, 0.9], "c": [0.8, 0.8]}
    _, quality, *_ = sheets_of(from_accuracies(accuracies | {"standard@4": [0.99, 0.99]}))
    texts = column_of(quality, "test acc ± sd")
    assert [texts[name, "1"][-4:] for name in accuracies] == [" (2)", " (1)", " (2)", " (4)"]
    assert "(" not in texts["standard", "4"]


def test_what_was_not_measured_has_no_rank():
    speed = Speed(mechanism="a", num_heads=1, latency=(0.1,), batch_size=2, peak_bytes=8)
    cells = [*from_accuracies({"standard": BASE, "a": BASE}).cells]
    cells[0] = replace(cells[0], test_top5=0.99)
    sheets = sheets_of(make_results(cells, [speed]))
    assert set(column_of(sheets[1], "test top-5").values()) == {"-"}
    lines = {line.cells[0]: line.cells[-3:] for line in sheets[-1].lines}
    assert lines == {"standard": ("-", "-", "-"), "a": ("100 ms", "-", "8 B")}


def test_the_quality_table_says_what_was_measured():
    train, quality, *_ = sheets_of(
        from_accuracies({"standard": BASE, "a": [v - 0.01 for v in BASE]})
    )
    assert train.columns == ("mechanism", "heads", "train acc", "train loss")
    assert quality.columns == ("mechanism", "heads", "test acc ± sd", "95% CI", "test loss")
    first = dict(zip(quality.columns, quality.lines[0].cells, strict=True))
    assert first["test acc ± sd"] == "97.00 ± 0.07 (1)"
    assert first["95% CI"] == "96.91–97.09"
    second = dict(zip(quality.columns, quality.lines[1].cells, strict=True))
    assert second["test acc ± sd"] == "96.00 ± 0.07 (2)"
    assert quality.caption.startswith("Mean over 5 seeds; accuracies in percent; sd over seeds; ")


def test_top5_has_a_column_in_both_tables():
    results = realistic(heads=(4,), seeds=2, top5=True, task="cifar100", recipe="c")
    train, test, *_ = sheets_of(results)
    assert train.columns[2:] == ("train acc", "train loss", "train top-5")
    assert test.columns[2:] == ("test acc ± sd", "each seed", "test loss", "test top-5")
    assert test.lines[0].cells[-1] == "99.50 (1)"


def test_the_difference_table_holds_all_but_the_baseline():
    accuracies = {"standard": BASE, "a": [v - 0.05 for v in BASE], "b": BASE[:1]}
    table = sheets_of(from_accuracies(accuracies | {"c@4": BASE}))[2]
    assert table.title == "Test accuracy against standard at equal heads"
    assert [line.cells for line in table.lines] == [
        ("a", "1", "-5.00", "[-5.00, -5.00]", "0", "worse", "does not suffice"),
        ("b", "1", "0.00", "-", "-", "not tested",
         "undecided: 1 seed cannot give a verdict, 5 can"),
        ("c", "4", "-", "-", "-", "not tested",
         "undecided: the baseline has no seed in common with it at this number of heads"),
    ]  # fmt: skip
    assert [line.starts_group for line in table.lines] == [False, False, True]


def test_the_cost_table():
    cost = sheets_of(realistic(heads=(1, 4), seeds=2))[-1]
    line = dict(zip(cost.columns, cost.lines[2].cells, strict=True))
    assert line["mechanism"] == "efficient"
    assert line["layer"] == "33,024"
    assert line["FLOPs"] == "6.29M"
    assert line["model"] == "139k"
    assert line["memory"] == "5.01 MiB"
    assert line["latency"].endswith(" ms")
    assert line["ratio"].endswith("x")
    assert [i for i, x in enumerate(cost.lines) if x.starts_group] == [4]
    assert "a batch of 64 samples" in cost.caption


def test_the_time_of_an_epoch_counts_every_seed():
    cells = [make_cell("a", seed=seed) for seed in range(2)]
    cells = [replace(cell, seconds_per_epoch=2.0 + seed) for seed, cell in enumerate(cells)]
    times = column_of(sheets_of(make_results(cells, baseline="a"))[-1], "epoch")
    assert list(times.values()) == ["2.50 s"]


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
        (spread(summarise([0.974])), "97.40"),
        (bounds(summarise([0.974])), "-"),
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


def test_a_name_is_never_read_as_markup():
    text = printed(from_accuracies({"standard": BASE, "[red]x[/]": BASE}))
    assert "[red]x[/]" in text


@pytest.mark.parametrize(
    ("shift", "colour"), [(0.0, "\x1b[32msuffices"), (-0.05, "\x1b[31mdoes not suffice")]
)
def test_verdicts_are_coloured(shift, colour):
    results = from_accuracies({"standard": BASE, "a": [v + shift for v in BASE]})
    assert colour in printed(results, color_system="standard")


# Further scores.

SIGNATURE = "nrefs:1|tok:none|version:2.6.0"
# mechanism: BLEU, perplexity and balanced accuracy of two seeds
SCORES = {
    "standard": ((20.0, 22.0), (9.0, 9.2), (0.30, 0.32)),
    "efficient": ((21.0, 21.0), (8.0, 8.2), (0.31, 0.31)),
    "optimised": ((19.0, 19.0), (9.5, 9.5), (0.29, 0.29)),
}


def scored(**changes) -> Results:
    cells = []
    for name, figures in SCORES.items():
        for seed in (0, 1):
            named = zip(("bleu", "perplexity", "balanced_accuracy"), figures, strict=True)
            scores = {score: values[seed] for score, values in named}
            cell = make_cell(name, 4, seed)
            cells.append(replace(cell, scores=scores, signatures={"bleu": SIGNATURE}))
    return make_results(cells, **changes)


def bare() -> Results:
    return make_results([make_cell()])


def scores_of(results: Results):
    return next((sheet for sheet in sheets_of(results) if sheet.title.startswith("Further")), None)


def test_the_further_table_holds_every_score_its_spread_and_place():
    sheet = scores_of(scored())
    assert sheet.columns == ("mechanism", "heads", "bleu", "perplexity", "balanced accuracy")
    assert [line.cells for line in sheet.lines] == [
        ("standard", "4", "21.00 ± 1.41 (1)", "9.10 ± 0.14 (2)", "31.00 ± 1.41 (1)"),
        ("efficient", "4", "21.00 ± 0.00 (1)", "8.10 ± 0.14 (1)", "31.00 ± 0.00 (1)"),
        ("optimised", "4", "19.00 ± 0.00 (3)", "9.50 ± 0.00 (3)", "29.00 ± 0.00 (3)"),
    ]
    assert sheet.caption.startswith("Mean over 2 seeds ± sd")
    assert "Balanced accuracy in percent." in sheet.caption


def test_signatures_stand_among_the_notes_once_each():
    results = scored()
    found = [note for note in notes(judge(results), results) if "ignature" in note]
    assert found == [f"Signature of bleu: {SIGNATURE}"]
    assert not any("ignature" in note for note in notes(judge(bare()), bare()))


def test_one_seed_has_no_spread_and_a_score_that_some_seeds_lack_is_a_dash():
    results = scored()
    cells = [cell for cell in results.cells if cell.seed == 0 or cell.mechanism != "efficient"]
    lacking = replace(cells[-1], scores={"bleu": 19.0}, signatures={})
    sheet = scores_of(make_results([*cells[:-1], lacking]))
    by_name = {line.cells[0]: line.cells[2:] for line in sheet.lines}
    assert by_name["efficient"][0].startswith("21.00 (")
    assert by_name["optimised"][1:] == ("-", "-")
    assert "(" not in by_name["standard"][1], "no places where one is missing"


def test_scores_survive_the_disk(tmp_path):
    cell = scored().cells[0]
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


def kept(label, predicted, confidence=0.9) -> Answers:
    label, predicted = np.asarray(label), np.asarray(predicted)
    return Answers(
        label=label,
        predicted=predicted,
        right=(label == predicted).astype(float),
        asked=np.ones(len(label)),
        loss=np.full(len(label), 0.5),
        confidence=np.full(len(label), confidence),
    )


def with_answers(predictions: dict[str, list[list[int]]], label: list[int]):
    """Results whose models gave these classes, seed by seed."""
    accuracies = {
        name: [float(np.mean(np.equal(one, label))) for one in of_seeds]
        for name, of_seeds in predictions.items()
    }
    survey = Survey(
        rows={"train": 30, "test": len(label)},
        classes=("no", "yes"),
        counts={"train": (20, 10), "test": (label.count(0), label.count(1))},
        majority=label.count(0) / len(label),
        majority_class="no",
        chance=0.5,
    )
    results = from_accuracies(
        accuracies, data=survey, majority=survey.majority, chance=survey.chance
    )
    rows = {
        (name, 1, seed): kept(label, one)
        for name, of_seeds in predictions.items()
        for seed, one in enumerate(of_seeds)
    }
    return replace(results, rows=rows)


LABEL = [0, 0, 0, 1] * 25


def test_answers_give_metrics_classes_confusion_and_disagreements():
    always, right = [[0] * 100] * 3, [LABEL] * 3
    found = {
        sheet.title: sheet
        for sheet in sheets_of(with_answers({"standard": right, "a": always}, LABEL))
    }
    metrics = {line.cells[0]: line.cells[2:] for line in found["More metrics, test"].lines}
    assert metrics["a"][:2] == ("50.00 ± 0.00", "42.86 ± 0.00")
    assert metrics["a"][3] == "15.00 ± 0.00", "sure by 0.9, right by 0.75"
    classes = [line.cells for line in found["Classes, test"].lines]
    assert ("yes", "a", "1", "-", "0.0", "0.0", "25") in classes
    assert ("no", "a", "1", "75.0", "100.0", "85.7", "75") in classes
    table = found["Confusion matrix, test: standard (1 head)"]
    assert [line.cells for line in table.lines] == [("no", "75", "0"), ("yes", "0", "25")]
    differ = found["Test rows on which standard and others differ"].lines[0].cells
    assert differ[2:] == ("0", "25", "75")


def test_classes_are_counted_over_all_seeds():
    seeds = [[0] * 100, LABEL, LABEL]
    sheets = sheets_of(with_answers({"standard": [LABEL] * 3, "a": seeds}, LABEL))
    classes = next(sheet for sheet in sheets if sheet.title == "Classes, test")
    recall = {line.cells[:2]: line.cells[4] for line in classes.lines}
    assert recall["yes", "a"] == "66.7"


def test_what_learning_nothing_scores_stands_below_the_accuracies():
    results = with_answers({"standard": [LABEL] * 3, "a": [LABEL] * 3}, LABEL)
    quality = next(s for s in sheets_of(results) if s.title == "Quality, test")
    assert [line.cells[:3] for line in quality.lines[2:]] == [
        ('always "no"', "", "75.00"),
        ("blind guess", "", "50.00"),
    ]
