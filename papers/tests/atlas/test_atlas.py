from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from suffice.comparison.resolution import EVIDENCE
from suffice.comparison.sufficiency import FAILS, SUFFICES, UNDECIDED, UNLEARNED
from suffice.presets import PRESETS
from suffice.train.recipes import recipe
from suffice.utils.statistics import Summary
from suffice_papers.advice import spreads, text
from suffice_papers.atlas.averages import averages
from suffice_papers.atlas.grid import NAMES, atlas_table, reaching, settings, twins
from suffice_papers.atlas.nulls import null_of
from suffice_papers.atlas.page import MATRIX, matrix_csv, page
from suffice_papers.atlas.recipes import ATLAS, TASKS
from suffice_papers.atlas.standings import Standing, margin_of, standings_of
from suffice_papers.published import path_of, read_published
from tests.comparison.synthetic import from_accuracies, recall_results

BETWEEN = {"70k": (0.06e6, 0.1e6), "300k": (0.28e6, 0.5e6)}
STANDARD = [0.900, 0.902, 0.898, 0.901, 0.899]


@pytest.mark.parametrize("name", ATLAS)
def test_models_have_the_size_of_their_name(name):
    chosen = recipe(name)
    count = sum(p.numel() for p in chosen.build("standard", 4).parameters())
    low, high = BETWEEN[name.rpartition("_")[2]]
    assert low < count < high


def test_tables_have_every_mechanism_that_is_legal():
    assert len(NAMES) == len(TASKS) == 12
    assert set(PRESETS) <= set(atlas_table("atlas-mnist-300k").mechanisms)
    chosen = recipe("atlas_shakespeare_300k")
    words = atlas_table("atlas-shakespeare-300k").mechanisms
    assert set(settings(chosen.model)) - set(words) == {"linformer"}
    assert not {"linformer", "etc"} & set(atlas_table("atlas-mqar8-70k").mechanisms)


@pytest.mark.parametrize("name", [name for name in ATLAS if "translation" not in name])
def test_one_window_lets_the_blocks_reach_every_token_and_no_smaller_one_does(name):
    model = recipe(name).model
    wide, reach = reaching(model), lambda window: model.depth * (window - 1)
    assert reach(wide) >= model.length - 1 > reach(wide - 1)
    assert reach(recipe(name).spec("sliding_window", 4).pattern.reach or 1) < model.length - 1


def results(**accuracies):
    pairs = {f"{name}@4": values for name, values in accuracies.items()}
    return from_accuracies(pairs, recipe="atlas_mnist_300k", task="mnist", chance=0.1)


def test_each_mechanism_is_judged_by_itself_at_a_share_of_what_standard_gains():
    content = results(
        standard=STANDARD,
        mqa=[value - 0.1 for value in STANDARD],
        gla=[0.90, 0.80, 0.95, 0.99, 0.85],
        gqa=[value - 0.012 for value in STANDARD],
        cla=[0.892, 0.889, 0.888],
        mla=[0.9],
    )
    assert margin_of(content) == pytest.approx((0.016, 0.8))  # 2% of 0.9 over 0.1
    rows = {row.mechanism: row for row in standings_of(content)}
    assert (rows["mqa"].verdict, rows["gla"].verdict) == (FAILS, UNDECIDED)
    assert rows["gqa"].verdict == SUFFICES  # not at a point
    assert rows["mqa"].words == "does not suffice: -10.0 [-10.0, -10.0]"
    assert (rows["mqa"].mark, rows["mla"].mark) == ("✗ -10.0", "…")
    assert rows["cla"].is_open
    assert not any(rows[name].is_open for name in ("gla", "mqa"))  # no seed left, and decided


def test_recall_is_how_many_seeds_solve_it():
    content = recall_results({"standard": 5, "mqa": 5, "gla": 3, "linear": 0}, seeds=5)
    rows = {row.mechanism: row for row in standings_of(content)}
    assert {name: row.mark for name, row in rows.items() if name != "standard"} == {
        "mqa": "✓ 5/5",
        "gla": "· 3/5",
        "linear": "✗ 0/5",
    }
    assert rows["gla"].words == "undecided: 3 of 5 seeds [15, 95]%, 65% of the answers right"
    assert [rows[name].is_open for name in ("mqa", "gla", "linear")] == [False, True, False]
    assert rows["mqa"].state == rows["standard"].state / 4  # one head of four
    assert rows["gla"].state == recipe("atlas_mqar8_70k").spec("gla", 4).state_bytes(24)


def test_where_standard_learned_nothing_nothing_suffices():
    guess = [0.1, 0.1002, 0.0998]
    content = results(standard=guess, mqa=guess, gla=[0.99] * 3)
    rows = [*standings_of(content), *standings_of(replace(content, majority=0.1, chance=None))]
    assert {row.verdict for row in rows if row.mechanism != "standard"} == {UNLEARNED}
    assert averages(rows * 3) == []


def test_where_standard_solves_nothing_only_who_always_does_suffices():
    content = recall_results({"standard": 0, "linear": 5, "mqa": 4}, seeds=5)
    words = {row.mechanism: row.words for row in standings_of(content)}
    assert words["linear"] == "solves it: 5 of 5 seeds [48, 100]%"
    assert words["mqa"].startswith("Standard never solves it; here: 4 of 5 seeds")


def test_seeds_of_standard_show_what_chance_decides():
    random = np.random.default_rng(0)
    spread = results(standard=(0.9 + 0.004 * random.standard_normal(17)).tolist())
    null = null_of(spread)
    assert null.seeds == 17
    assert null.fails == 0.0
    assert 0.0 < null.suffices < 0.06
    assert null_of(results(standard=STANDARD)) is None  # too few


def standing(mechanism, task, mean, sd, seeds=5):
    half = 2.776 * sd / math.sqrt(seeds)
    difference = Summary(n=seeds, mean=mean, sd=sd, low=mean - half, high=mean + half)
    return Standing(
        task=task,
        mechanism=mechanism,
        quality=difference,
        difference=difference,
        verdict=UNDECIDED,
        gain=1.0,
        state=None,
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
    same = twins("atlas_mqar8_70k")
    assert same == {"etc": "longformer"}
    assert not set(same) & set(atlas_table("atlas-mqar8-70k").mechanisms)
    rows = standings_of(recall_results({"standard": 3, "longformer": 3}, seeds=3))
    assert [(row.mechanism, row.mark) for row in rows if row.same_as] == [("etc", "= longformer")]


def test_the_page_begins_with_what_was_found_and_has_no_wide_table():
    first, _, last = page().partition("## How it was trained")
    assert first.index("in every seed") < first.index(".svg") < first.index(MATRIX)
    assert max(map(len, first.splitlines())) < 500
    assert all(name in last for name in NAMES)


def test_the_page_in_the_documents_is_what_the_command_writes():
    path = path_of("x").parents[3] / "docs" / "atlas.md"
    assert path.read_text() == page(), "run `suffice reproduce atlas --publish`"
    assert (path.parent / "atlas" / MATRIX).read_text() == matrix_csv()


def test_the_evidence_that_advise_reads_is_that_of_the_published_tables():
    stored = path_of("x").parents[3].joinpath("suffice", *EVIDENCE).read_text()
    assert stored == text(), "run `suffice reproduce atlas --publish`"
    assert len(stored) < 60_000


def test_the_spread_of_a_recipes_seeds_is_pooled_over_mechanisms_and_heads():
    stored, gaps = read_published("v2-imdb").results, []
    for mechanism, heads in stored.pairs():
        if mechanism != "standard":
            ours, base = (stored.select(name, heads) for name in (mechanism, "standard"))
            pairs = zip(ours, base, strict=True)
            gaps.append([a.test_accuracy - b.test_accuracy for a, b in pairs])
    (known,) = (one for one in spreads() if one["recipe"] == "imdb")
    assert known["free"] == sum(len(of_pair) - 1 for of_pair in gaps)
    squares = sum(np.var(of_pair) * len(of_pair) for of_pair in gaps)
    assert known["variance"] == pytest.approx(squares / known["free"])
