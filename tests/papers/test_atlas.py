from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from suffice.measure.statistics import Summary
from suffice.measure.verdict import FAILS, SUFFICES, UNDECIDED
from suffice.papers import atlas
from suffice.papers.atlas import NAMES, NULL, atlas_table, averages, page, settings, standings_of
from suffice.papers.results import path_of
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
    # DerSimonian and Laird 1986, equations 7 to 9
    variance = sds**2 / 5
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


def test_the_page_in_the_documents_is_what_the_command_writes():
    path = path_of("x").parents[2] / "docs" / "atlas.md"
    assert path.read_text() == page(), "run `suffice reproduce atlas --publish`"
