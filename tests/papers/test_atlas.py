from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from suffice.measure.published import path_of
from suffice.measure.statistics import Summary
from suffice.measure.verdict import FAILS, SUFFICES, UNDECIDED
from suffice.papers import atlas
from suffice.papers.atlas import NAMES, NULL, atlas_table, averages, page, settings, standings_of
from suffice.presets import PRESETS
from suffice.recipes import ATLAS, recipe
from suffice.recipes.atlas import SIZES, TASKS
from tests.measure.synthetic import from_accuracies

BETWEEN = {"300k": (0.28e6, 0.5e6), "3m": (2.8e6, 4.5e6)}


@pytest.mark.parametrize("name", ATLAS)
def test_models_have_the_size_of_their_name(name):
    chosen = recipe(name)
    count = sum(p.numel() for p in chosen.build("standard", 4).parameters())
    low, high = BETWEEN[name.rpartition("_")[2]]
    assert low < count < high


def test_tables_have_every_mechanism_that_is_legal():
    assert len(NAMES) == len(SIZES) * len(TASKS) == 26
    images = atlas_table("atlas-mnist-300k").mechanisms
    assert {*PRESETS, NULL} <= set(images)
    words = atlas_table("atlas-openwebtext-3m").mechanisms
    assert set(settings(64)) - set(words) == {"linformer"}
    assert "sliding_window" not in atlas_table("atlas-translation-es-300k").mechanisms


def results(**accuracies):
    pairs = {f"{name.replace('_again', '+draw:1')}@4": v for name, v in accuracies.items()}
    return from_accuracies(pairs, recipe="atlas_mqar_300k", task="mqar")


def test_each_mechanism_is_judged_by_itself():
    standard = [0.900, 0.902, 0.898, 0.901, 0.899]
    rows = standings_of(
        results(
            standard=standard,
            standard_again=[0.901, 0.901, 0.897, 0.902, 0.900],
            mqa=[value - 0.1 for value in standard],
            gla=[0.90, 0.80, 0.95, 0.99, 0.85],
            mla=[0.9],
        ),
        "mqar",
        "300k",
    )
    verdicts = {row.mechanism: row.verdict for row in rows}
    assert verdicts[NULL] == SUFFICES
    assert (verdicts["mqa"], verdicts["gla"]) == (FAILS, UNDECIDED)
    marks = {row.mechanism: row.mark for row in rows}
    assert marks["mqa"] == "✗ -10.0"
    assert marks["mla"] == "…"
    states = {row.mechanism: row.state for row in rows}
    assert states["mqa"] == states["standard"] / 4  # one head of four
    assert states["gla"] == recipe("atlas_mqar_300k").spec("gla", 4).state_bytes(24)


def test_where_standard_learned_nothing_nothing_suffices():
    guess = [0.0625, 0.0627, 0.0623]
    content = results(standard=guess, standard_again=guess[::-1], mqa=guess, gla=[0.99] * 3)
    for floors in ({"chance": 0.0625}, {"majority": 0.0625}):
        rows = standings_of(replace(content, **floors), "mqar", "300k")
        assert {row.mark for row in rows} == {"○"}
        assert not any(row.verdict == SUFFICES for row in rows)
        assert averages(rows * 3) == []


def standing(mechanism, task, mean, sd, seeds=5):
    half = 2.776 * sd / math.sqrt(seeds)
    difference = Summary(n=seeds, mean=mean, sd=sd, low=mean - half, high=mean + half)
    return atlas.Standing(
        task=task,
        size="300k",
        mechanism=mechanism,
        quality=difference,
        difference=difference,
        verdict=UNDECIDED,
        state=None,
        flops=1.0,
        seconds=1.0,
    )


def test_averages_are_of_a_random_effects_model():
    effects, sds = np.array([0.01, -0.02, 0.03, 0.0]), np.array([0.01, 0.02, 0.01, 0.03])
    rows = [standing("a", f"t{n}", *pair) for n, pair in enumerate(zip(effects, sds, strict=True))]
    rows += [standing("b", f"t{n}", 0.1, 0.01) for n in range(4)]
    rows += [standing("c", f"t{n}", 0.2, 0.01) for n in range(2)]  # on too few tasks
    first, second = averages(rows)
    assert (first.mechanism, second.mechanism) == ("b", "a")
    assert first.between == 0.0
    assert (first.ranks, second.ranks) == ((1, 1), (2, 2))
    # five seeds, with the weight of four more at the median variance of the task, which b is in too
    median = (sds**2 + 0.01**2) / 2
    median[:2] = np.median([sds[:2] ** 2, [0.01**2] * 2, [0.01**2] * 2], axis=0)  # and c
    variance = (4 * sds**2 + 4 * median) / 8 / 5
    # DerSimonian and Laird 1986, equations 7 to 9
    w = 1 / variance
    q = w @ (effects - (w @ effects) / w.sum()) ** 2
    tau2 = (q - 3) / (w.sum() - (w**2).sum() / w.sum())
    w = 1 / (variance + tau2)
    mean = (w @ effects) / w.sum()
    assert math.isclose(second.between, tau2**0.5)
    assert math.isclose(second.difference.mean, mean)
    # Hartung and Knapp 2001, never narrower than without their correction
    scale = max(1.0, w @ (effects - mean) ** 2 / 3)
    half = 3.182446305284263 * math.sqrt(scale / w.sum())
    assert math.isclose(second.difference.high - mean, half, rel_tol=1e-9)


def test_a_lucky_spread_of_few_seeds_does_not_decide_an_average():
    """Of two seeds that agree by chance nothing follows: others on the task spread by 3 points."""
    usual = [standing(f"m{n}", f"t{t}", 0.0, 0.03, seeds=2) for n in range(8) for t in range(4)]
    lucky = [standing("lucky", f"t{t}", (0.05, -0.03, -0.03, -0.03)[t], 0.03) for t in range(4)]
    lucky[0] = standing("lucky", "t0", 0.05, 1e-6, seeds=2)
    average = next(a for a in averages([*usual, *lucky]) if a.mechanism == "lucky")
    assert average.difference.low < 0.0 < average.difference.high
    assert average.difference.mean < 0.0


def test_ranks_share_the_luck_of_standard():
    rows = [standing(f"m{n}", f"t{t}", 0.004 * n, 0.01) for n in range(6) for t in range(4)]
    standard = [
        replace(standing("standard", f"t{t}", 0.9, 0.0099), difference=None) for t in range(4)
    ]
    apart, together = averages(rows), averages([*rows, *standard])
    width = [sum(high - low for low, high in (a.ranks for a in some)) for some in (apart, together)]
    assert width[1] < width[0]


def test_rows_that_compute_the_same_are_trained_and_judged_once():
    same = atlas.twins("atlas_mqar_300k")
    assert same["etc"] == "longformer"
    assert NULL not in same
    assert not set(same) & set(atlas_table("atlas-mqar-300k").mechanisms)
    once = [0.9, 0.91, 0.92]
    rows = standings_of(results(standard=once, longformer=once, etc=once), "mqar", "300k")
    assert [row.mark for row in rows if row.mechanism == "etc"] == ["= longformer"]
    trained = standings_of(results(standard=once, longformer=once), "mqar", "300k")
    assert [row.mechanism for row in trained if row.same_as] == ["etc"]


def test_the_page_says_what_its_marks_and_names_mean():
    text = page()
    marks = {row.mark[0] for row in atlas.standings() if row.mechanism != "standard"}
    legend = next(line for line in text.splitlines() if line.startswith("✓ suffices"))
    assert all(mark in legend for mark in marks)
    judged = [r for r in atlas.standings() if r.difference and r.difference.low is not None]
    count = sum(not row.same_as for row in judged)
    assert f"{count} cells have the seeds for a verdict" in text
    assert f"{0.05 * count:.1f} would be decided by chance" in text
    assert "| mistral | 6 | 4 |" in text  # windows, in tokens
    assert "in progress" in text.partition("\n")[0]


def test_the_page_in_the_documents_is_what_the_command_writes():
    path = path_of("x").parents[2] / "docs" / "atlas.md"
    assert path.read_text() == page(), "run `suffice reproduce atlas --publish`"
