from __future__ import annotations

import pytest

from suffice.measure.report.tables import build_rows, scaled, seconds, sheets, size
from suffice.measure.results import Speed
from suffice.measure.verdict import judge

from .synthetic import from_accuracies, make_cell, make_results, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]


def rows_of(results):
    return build_rows(results, judge(results))


def sheets_of(results):
    return sheets(results, judge(results), rows_of(results))


def test_one_row_per_mechanism_grouped_by_rising_heads():
    rows = rows_of(realistic(heads=(4, 1), seeds=3, epochs=3))
    names = ["standard", "optimised", "efficient", "super_attention"]
    assert [(row.mechanism, row.num_heads) for row in rows] == [
        (n, h) for h in (1, 4) for n in names
    ]
    assert {row.seeds for row in rows} == {3}


def test_a_row_averages_over_seeds_and_finds_its_speed_and_comparison():
    results = realistic(heads=(4,), seeds=5)
    row = rows_of(results)[2]
    cells = results.select("efficient", 4)
    assert row.test_accuracy.mean == pytest.approx(sum(c.test_accuracy for c in cells) / 5)
    assert row.test_accuracy.n == 5
    assert row.latency.median == pytest.approx(sorted(results.speed("efficient", 4).latency)[7])
    assert 0.55 < row.latency_ratio < 0.67
    assert row.comparison.mechanism == "efficient"
    assert rows_of(results)[0].comparison is None
    assert rows_of(results)[0].latency_ratio == 1.0


def test_ranks_are_among_equal_heads_and_shared_by_equal_prints():
    accuracies = {"standard": [0.9, 0.9], "a": [0.95, 0.95], "b": [0.900004, 0.9], "c": [0.8, 0.8]}
    results = from_accuracies(accuracies | {"standard@4": [0.99, 0.99]})
    ranks = {(r.mechanism, r.num_heads): r.ranks for r in rows_of(results)}
    assert [ranks[n, 1]["test_accuracy"] for n in accuracies] == [2, 1, 2, 4]
    assert [ranks[n, 1]["flops"] for n in accuracies] == [4, 3, 2, 1]
    assert ranks["standard", 4] == {}


def test_what_was_not_measured_has_no_rank():
    speed = Speed(mechanism="a", num_heads=1, latency=(0.1,), batch_size=2, peak_bytes=8)
    results = make_results(from_accuracies({"standard": BASE, "a": BASE}).cells, [speed])
    standard, a = rows_of(results)
    assert "latency" not in a.ranks
    assert "train_top5" not in a.ranks
    assert (a.latency_ratio, a.peak_bytes) == (None, 8)
    assert (standard.latency, standard.batch_size, standard.peak_bytes) == (None, None, None)


def test_the_paper_row_is_found_where_one_exists():
    rows = rows_of(realistic(heads=(4, 8), seeds=2, task="mnist", recipe="mnist_v2"))
    assert [row.paper is not None for row in rows] == [True] * 4 + [False] * 4
    assert rows[3].paper.parameters_layer == 37_184
    assert all(row.paper is None for row in rows_of(realistic(seeds=2)))


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


def test_the_quality_table_says_when_rows_ask_for_several_answers():
    train, quality, *_ = sheets_of(from_accuracies({"standard": BASE, "a": BASE}, answers=8.0))
    for sheet in (train, quality):
        assert sheet.caption.startswith("Mean over 5 seeds; accuracies in percent of answers; sd")


def test_paper_lines_stand_below_ours():
    train, quality, _, cost = sheets_of(realistic(heads=(4,), seeds=2, task="mnist", recipe="m_v2"))
    assert [line.from_paper for line in quality.lines] == [False, True] * 4
    paper = dict(zip(quality.columns, quality.lines[7].cells, strict=True))
    assert paper == {
        "mechanism": "paper",
        "heads": "",
        "test acc ± sd": "98.62",
        "95% CI": "",
        "test loss": "0.051",
    }
    assert train.lines[7].cells == ("paper", "", "96.96", "0.112")
    paper = dict(zip(cost.columns, cost.lines[7].cells, strict=True))
    assert (paper["params/layer"], paper["epoch"]) == ("37,184", "7.58 s")
    assert "arXiv:2403.01643, v2 table 5." in quality.caption
    assert "arXiv:2403.01643, v2 table 5." in cost.caption


def test_top5_has_a_column_in_both_tables():
    results = realistic(heads=(4,), seeds=2, top5=True, task="cifar100", recipe="c")
    train, test, *_ = sheets_of(results)
    assert train.columns[2:] == ("train acc", "train loss", "train top-5")
    assert test.columns[2:] == ("test acc ± sd", "95% CI", "test loss", "test top-5")
    assert test.lines[0].cells[-1] == "99.50 (1)"
    assert test.lines[1].cells == ("paper", "", "34.48", "", "2.91", "63.14")
    assert train.lines[1].cells == ("paper", "", "47.09", "2.00", "77.99")


def test_the_difference_table_holds_all_but_the_baseline():
    accuracies = {"standard": BASE, "a": [v - 0.05 for v in BASE], "b": BASE[:1]}
    table = sheets_of(from_accuracies(accuracies | {"c@4": BASE}))[2]
    assert table.title == "Test accuracy against standard at equal heads"
    assert [line.cells for line in table.lines] == [
        ("a", "1", "-5.00", "[-5.00, -5.00]", "0", "worse", "does not suffice"),
        ("b", "1", "0.00", "-", "-", "not tested",
         "undecided: a single seed gives no interval, train 5"),
        ("c", "4", "-", "-", "-", "not tested",
         "undecided: the baseline has no seed in common with it at this number of heads"),
    ]  # fmt: skip
    assert [line.starts_group for line in table.lines] == [False, False, True]


def test_the_cost_table():
    cost = sheets_of(realistic(heads=(1, 4), seeds=2))[-1]
    line = dict(zip(cost.columns, cost.lines[2].cells, strict=True))
    assert line["mechanism"] == "efficient"
    assert line["params/layer"] == "33,024 (1)"
    assert line["FLOPs"] == "6.29M (1)"
    assert line["model"] == "139k"
    assert line["memory"] == "5.01 MiB"
    assert line["latency"].endswith(" ms (1)")
    assert line["ratio"].endswith("x")
    assert [i for i, x in enumerate(cost.lines) if x.starts_group] == [4]
    assert "a batch of 64 samples" in cost.caption


def test_unmeasured_costs_are_dashes():
    cost = sheets_of(from_accuracies({"standard": BASE}))[-1]
    assert cost.lines[0].cells[-3:] == ("-", "-", "-")
    assert "Latency: median forward of a batch; ratio" in cost.caption


def test_different_numbers_of_seeds_are_told():
    quality = sheets_of(from_accuracies({"standard": BASE, "a": BASE[:2]}))[0]
    assert quality.caption.startswith("Mean over 2 to 5 seeds;")
    quality = sheets_of(make_results([make_cell()]))[0]
    assert quality.caption.startswith("Mean over 1 seed;")


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
    ],
)
def test_numbers_carry_three_digits_and_their_unit(text, wanted):
    assert text == wanted
