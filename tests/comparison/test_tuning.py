from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from suffice.comparison import compare as module
from suffice.comparison import jobs, judge, tuning
from suffice.comparison.compare import compare
from suffice.comparison.report import tables
from suffice.comparison.results import read_results
from suffice.comparison.sentence import notes
from suffice.comparison.tuning import Trial
from suffice.data import load
from suffice.errors import ConfigError, StateError
from suffice.train import Epoch, Interrupted

from .test_compare import TINY, plan

RATES = (0.00316, 0.01, 0.0316)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 3)
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1e-4)


def run(folder, plan, **options):
    return compare(plan, folder, console=Console(file=io.StringIO()), quiet=True, **options)


def fake_fit(monkeypatch, loss, calls):
    """Let a training end at once with the validation loss of `loss(model, training)`."""

    def fit(model, dataset, training, *, seed, **options):
        calls.append((training.learning_rate, seed))
        epoch = Epoch(
            epoch=1,
            train_loss=1.0,
            train_accuracy=0.5,
            validation_loss=loss(model, training),
            validation_accuracy=0.5,
            seconds=2.0,
        )
        return SimpleNamespace(epochs=(epoch,))

    monkeypatch.setattr(tuning, "fit", fit)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_each_mechanism_is_trained_at_the_rate_chosen_for_it(tmp_path, monkeypatch):
    calls, trained = [], {}
    small = parameters(TINY.build("efficient", 2))

    def loss(model, training):
        best = 0.01 if parameters(model) == small else 0.0316
        return 1.0 + abs(math.log(training.learning_rate / best))

    fake_fit(monkeypatch, loss, calls)
    original = jobs.train_cell

    def train_cell(plan, key, *args, rate, **options):
        trained[key] = rate
        return original(plan, key, *args, rate=rate, **options)

    monkeypatch.setattr(jobs, "train_cell", train_cell)
    results = run(tmp_path, plan(tune=3, seeds=1))
    assert trained == {("standard", 2, 0): 0.0316, ("efficient", 2, 0): 0.01}
    assert {rate for rate, _ in calls} == set(RATES)
    assert {seed for _, seed in calls} == {1_000_000, 1_000_001}
    standard, efficient = results.tuned
    assert (standard.rate, standard.at_edge, standard.trainings) == (0.0316, True, 6)
    assert (efficient.rate, efficient.at_edge) == (0.01, False)
    assert read_results(tmp_path / "results.json").tuned == results.tuned
    config = json.loads((tmp_path / "models" / "standard-h2-s0" / "config.json").read_text())
    assert config["recipe"]["training"]["learning_rate"] == 0.0316


def test_the_rate_has_the_lowest_mean_loss_over_seeds_and_the_smaller_of_equals():
    def chosen(*losses):
        trials = [
            [Trial(rate=r, loss=one, seconds=1.5) for one in of]
            for r, of in zip(RATES, losses, strict=True)
        ]
        return tuning._chosen("standard", 2, RATES, trials)

    assert chosen((5.0, 1.0), (2.0, 5.0), (4.0, 1.0)).rate == RATES[2]
    equal = chosen((2.0, 1.0), (1.0, 2.0), (3.0, 3.0))
    assert (equal.rate, equal.seconds) == (RATES[0], 9.0)
    assert chosen((math.inf, 0.1), (9.0, 9.0), (math.inf, math.inf)).rate == RATES[1]


def test_a_trial_counts_its_best_epoch_and_all_its_seconds(tmp_path, monkeypatch):
    def fit(model, dataset, training, *, seed, **options):
        losses = (3.0, 1.0 + training.learning_rate, 2.0)
        return SimpleNamespace(
            epochs=tuple(
                SimpleNamespace(validation_loss=loss, seconds=9.0, cpu_seconds=2.0)
                for loss in losses
            )
        )

    monkeypatch.setattr(tuning, "fit", fit)
    standard, efficient = run(tmp_path, plan(tune=3, seeds=1)).tuned
    assert standard.losses == tuple((1.0 + rate, 1.0 + rate) for rate in RATES)
    assert (efficient.rate, efficient.seconds) == (RATES[0], 36.0)


def test_the_report_names_rates_their_price_and_a_grid_that_is_too_narrow(tmp_path, monkeypatch):
    fake_fit(monkeypatch, lambda model, training: 1 / training.learning_rate, [])
    results = run(tmp_path, plan(tune=3, seeds=1))
    verdict = judge(results)
    text = " ".join(notes(verdict, results))
    assert "standard (2 heads) 0.0316" in text
    assert "12 trainings and 0.4 minutes, besides the 2 trainings" in text
    assert "0.0316 of standard (2 heads), efficient (2 heads) is the largest tried" in text
    (sheet,) = (sheet for sheet in tables(results, verdict) if sheet.title == "Learning rates")
    assert sheet.lines[0].cells[-1] == "0.0316, at the edge"


def test_a_rate_that_diverges_is_not_chosen(tmp_path, monkeypatch):
    def loss(model, training):
        if training.learning_rate > 0.005:
            raise StateError("the training loss is nan")
        return 1.0

    fake_fit(monkeypatch, loss, [])
    results = run(tmp_path, plan(tune=3, seeds=1))
    assert results.tuned[0].rate == 0.00316
    assert results.tuned[0].losses[2] == (math.inf, math.inf)
    assert read_results(tmp_path / "results.json").tuned == results.tuned


def test_rates_that_all_diverge_are_refused(tmp_path, monkeypatch):
    def loss(model, training):
        raise StateError("the training loss is nan")

    fake_fit(monkeypatch, loss, [])
    with pytest.raises(StateError, match=r"diverges at every learning rate.*learning_rate=0.003"):
        run(tmp_path, plan(tune=3))


def test_an_interrupted_choice_goes_on_where_it_stopped(tmp_path, monkeypatch):
    calls = []

    def loss(model, training):
        if len(calls) == 4:
            raise Interrupted(None, epoch=1, step=0)
        return 1 / training.learning_rate

    fake_fit(monkeypatch, loss, calls)
    with pytest.raises(Interrupted):
        run(tmp_path, plan(tune=3, seeds=1))
    results = run(tmp_path, plan(tune=3, seeds=1), resume=True)
    assert len(calls) == 12 + 1  # the interrupted one again
    assert results.tuned[1].rate == 0.0316


def test_a_real_choice_reads_no_test_rows_and_can_be_repeated(tmp_path, monkeypatch):
    data = load("digits")
    runs = []
    for name, shift in (("a", 0), ("b", 1)):
        test = replace(data.test, labels=(data.test.labels + shift) % 10)
        dataset = replace(data, test=test)
        monkeypatch.setattr(module, "load", lambda *_, dataset=dataset, **__: dataset)
        runs.append(run(tmp_path / name, plan(tune=3, seeds=1)))
    first, second = runs
    assert [(one.rate, one.losses) for one in first.tuned] == [
        (one.rate, one.losses) for one in second.tuned
    ]
    assert first.cells[0].test_accuracy != second.cells[0].test_accuracy


@pytest.mark.parametrize("count", [0, 1, 2, 4, 11])
def test_a_grid_without_a_middle_is_refused(count):
    with pytest.raises(ConfigError, match="give 3, 5, 7 or 9"):
        plan(tune=count)


def test_cells_of_the_recipes_rate_are_not_mixed_with_tuned_ones(tmp_path):
    run(tmp_path, plan(seeds=1))
    with pytest.raises(ConfigError, match="tune"):
        run(tmp_path, plan(seeds=1, tune=3), resume=True)


def test_shares_of_a_cluster_cannot_tune(tmp_path):
    with pytest.raises(ConfigError, match="--cells with --tune"):
        run(tmp_path, plan(tune=3), share=(1, 2))
