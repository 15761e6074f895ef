"""Comparisons in somebody's own loop: cells, resume, shares of a cluster, refusals."""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import suffice
from suffice.comparison import judge, notes
from suffice.comparison.answers import path_of, read_answers
from suffice.comparison.own_loop import AttentionMaker
from suffice.comparison.report import tables
from suffice.comparison.results import cell_path, read_results
from suffice.errors import ConfigError
from suffice.presets import preset

from .synthetic import make_cell, make_results

pytestmark = pytest.mark.usefixtures("brief")


def counted(scores=None):
    """Return a training that scores by seed and mechanism, and the list of its calls."""
    calls = []

    def train(attention, seed):
        """A loop of mine"""
        layer = attention(16, 2, causal=True)
        layer(torch.zeros(1, 8, 16))
        calls.append((attention.name, seed))
        return 0.8 + seed / 1000 if scores is None else scores

    return train, calls


def run(train, out, mechanisms=("standard", "efficient"), **options):
    return suffice.compare(train, mechanisms, out=out, quiet=True, **{"seeds": 3, **options})


def test_a_loop_is_compared_and_reported(tmp_path):
    train, calls = counted()
    done = run(train, tmp_path)
    assert calls == [(name, seed) for seed in range(3) for name in ("standard", "efficient")]
    assert (done.verdict.outcome, done.verdict.winner.mechanism) == ("suffices", "efficient")
    assert done.results.title == "A loop of mine"
    costs = {cell.mechanism: cell.flops for cell in done.results.cells}
    causal = {"d_model": 16, "num_heads": 2, "causal": True}
    assert costs == {name: preset(name, **causal).cost(8).flops for name in costs}
    assert {cell.num_heads for cell in done.results.cells} == {2}
    assert "efficient (2 heads) suffices" in str(done)
    assert "A loop of mine" in done.page.read_text()
    assert read_results(tmp_path / "results.json") == done.results


def test_finished_trainings_are_not_repeated(tmp_path):
    train, calls = counted()
    run(train, tmp_path, seeds=2)
    run(train, tmp_path, seeds=3)
    assert len(calls) == 6
    assert calls[4:] == [("standard", 2), ("efficient", 2)]


def test_another_function_does_not_go_on_with_the_cells(tmp_path):
    run(counted()[0], tmp_path)

    def train(attention, seed):
        attention(8, 2)
        return 0.5

    with pytest.raises(ConfigError, match="trainings of another function or metric"):
        run(train, tmp_path)
    with pytest.raises(ConfigError, match=r"metric differs"):
        run(counted()[0], tmp_path, metric="f1")


def near(window):
    return lambda d_model, num_heads, **options: preset(
        "sliding_window", d_model, num_heads, window=window, **options
    )


def doubled(layer):
    return nn.Sequential(layer, layer)


def tripled(layer):
    return nn.Sequential(layer, layer, layer)


def repeated(repeat):
    def make(d_model, num_heads, **options):
        return repeat(nn.Linear(d_model, d_model))

    return make


@pytest.mark.parametrize(
    ("before", "after"),
    [(near(4), near(8)), (repeated(doubled), repeated(tripled)), ("mqa", "gqa")],
    ids=["bound", "named", "preset"],
)
def test_a_mechanism_that_changed_does_not_go_on_with_its_cells(tmp_path, before, after):
    train, calls = counted()
    mechanisms = {"standard": "standard", "mine": before}
    run(train, tmp_path, mechanisms)
    run(train, tmp_path, {**mechanisms, "efficient": "efficient"})
    assert len(calls) == 9, "the cells of before count"
    with pytest.raises(ConfigError, match="another 'mine'"):
        run(train, tmp_path, {**mechanisms, "mine": after})
    run(train, tmp_path, ("standard", "efficient"))
    with pytest.raises(ConfigError, match="another 'mine'"):
        run(train, tmp_path, {**mechanisms, "mine": after})


def test_a_folder_of_before_goes_on(tmp_path):
    """Its digest of a function was of more code, and cannot be compared; a preset's name can."""
    train, calls = counted()
    mechanisms = {"standard": "standard", "mine": near(4)}
    run(train, tmp_path, mechanisms)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert "commit" in plan["recipe"]
    plan["recipe"]["made_by"] = {"standard": "standard", "mine": "0123456789abcdef"}
    del plan["recipe"]["commit"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    run(train, tmp_path, mechanisms)
    assert len(calls) == 6
    plan["recipe"]["made_by"]["mine"] = "mqa"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match="another 'mine'"):
        run(train, tmp_path, mechanisms)


def test_shares_are_merged_by_reading(tmp_path, monkeypatch):
    train, calls = counted()
    assert run(train, tmp_path, cells="2/4") is None
    assert calls == [("efficient", 0), ("efficient", 2)]
    monkeypatch.setenv("SUFFICE_CELLS", "1/4")
    assert run(train, tmp_path) is None
    monkeypatch.delenv("SUFFICE_CELLS")
    done = run(train, tmp_path)
    assert len(calls) == 6 == len(done.results.cells)
    with pytest.raises(ConfigError, match="cells=5/4"):
        run(train, tmp_path, cells="5/4")


def drawn(attention, seed):
    """A loop that another process can import."""
    layer = attention(16, 2)
    layer(torch.zeros(1, 8, 16))
    return {"accuracy": torch.rand(20), "loss": float(layer.spec.num_heads + random.random())}


def test_trainings_side_by_side_are_those_of_one_after_the_other(tmp_path):
    alone = run(drawn, tmp_path / "alone")
    beside = run(drawn, tmp_path / "beside", jobs=2)
    timeless = [
        [replace(cell, seconds_per_epoch=0.0) for cell in done.results.cells]
        for done in (alone, beside)
    ]
    assert timeless[0] == timeless[1]
    again = run(drawn, tmp_path / "beside", engine="ray", address="192.0.2.1:6379")
    assert again.results.cells == beside.results.cells
    assert beside.verdict.outcome == alone.verdict.outcome
    assert beside.results.machine["threads"] == max(1, torch.get_num_threads() // 2)
    assert beside.results.rows.keys() == alone.results.rows.keys()


def test_functions_that_another_process_cannot_import_are_refused(tmp_path):
    train, calls = counted()
    with pytest.raises(ConfigError, match='engine="ray"'):
        run(train, tmp_path / "run", jobs=2)
    assert calls == []
    assert not (tmp_path / "run").exists()


def test_a_script_that_its_workers_would_run_again_is_refused(tmp_path, monkeypatch):
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match="__main__"):
        run(drawn, tmp_path / "run", jobs=2)


def test_every_mechanism_starts_from_the_same_state(tmp_path):
    drawn = {}

    def train(attention, seed):
        drawn[attention.name, seed] = (random.random(), np.random.rand(), float(torch.rand(())))
        attention(8, 2)(torch.zeros(1, 2, 8))
        return 0.5

    run(train, tmp_path)
    assert drawn["standard", 1] == drawn["efficient", 1] != drawn["standard", 0]


def test_scores_are_kept_by_name(tmp_path):
    scores = {"f1": torch.tensor(0.75), "loss": np.float32(0.5), "seconds": 3}
    done = run(counted(scores)[0], tmp_path, metric="f1")
    cell = done.results.cells[0]
    assert (cell.test_accuracy, cell.test_loss, cell.scores) == (0.75, 0.5, {"seconds": 3.0})
    assert cell.train_accuracy is None


def test_scores_of_each_row_are_kept(tmp_path):
    rows = {"accuracy": [True, False, True, True], "loss": torch.tensor([0.5, 2.0, 0.25, 0.25])}
    done = run(counted(rows)[0], tmp_path)
    cell = done.results.cells[0]
    assert (cell.test_accuracy, cell.test_loss) == (0.75, 0.75)
    answers = read_answers(path_of(tmp_path, cell_path(tmp_path, *cell.key).stem))
    assert answers.right.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert answers.loss.tolist() == [0.5, 2.0, 0.25, 0.25]


def test_own_variants_are_functions(tmp_path):
    def narrow(d_model, num_heads, **options):
        return preset("sliding_window", d_model, num_heads, window=2, causal=options["causal"])

    done = run(counted()[0], tmp_path, {"all": "standard", "narrow": narrow})
    assert {cell.mechanism for cell in done.results.cells} == {"all", "narrow"}
    assert done.verdict.baseline == "all"


def test_options_reach_the_mechanism():
    maker = AttentionMaker("mistral", "x")
    options = {"length": 32, "causal": True, "window": 4, "full_every": 2}
    specs = [maker(16, 2, **options).spec for _ in range(2)]
    assert specs[0] != specs[1]  # which differ by layer
    assert maker.flops == sum(spec.cost(32).flops for spec in specs)
    with pytest.raises(ConfigError, match="unknown option of standard 'window'"):
        AttentionMaker("standard", "x")(16, 2, window=3)


def test_layers_that_share_need_a_model_of_ours():
    make = AttentionMaker("cla", "cla")
    assert make(8, 2).spec.shares is None
    with pytest.raises(ConfigError, match="layer 1 reads the keys and values of layer 0"):
        make(8, 2)


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="mechanisms: standard; name at least two"):
        run(counted()[0], tmp_path, ["standard"])
    with pytest.raises(ConfigError, match="unknown mechanism 'eficient'; did you mean"):
        run(counted()[0], tmp_path, ["standard", "eficient"])
    with pytest.raises(ConfigError, match="returned loss and no accuracy"):
        run(counted({"loss": 0.5})[0], tmp_path / "a")
    with pytest.raises(ConfigError, match=r"accuracy = 80; give a fraction"):
        run(counted(80.0)[0], tmp_path / "b")
    with pytest.raises(ConfigError, match="scores that are not numbers"):
        run(counted("good")[0], tmp_path / "c")
    with pytest.raises(ConfigError, match="did not call"):
        run(lambda _attention, _seed: 0.5, tmp_path / "d")


def losing(values):
    """Return a training that scores what is given for each mechanism, plus a little by seed."""

    def train(attention, seed):
        """A loss of mine"""
        layer = attention(16, 2, causal=True)
        layer(torch.zeros(1, 8, 16))
        return values[attention.name] + 0.001 * seed * (1 + len(attention.name) % 2)

    return train


@pytest.mark.parametrize(
    ("metric", "options", "values", "outcome"),
    [
        ("loss", {"margin": 0.05}, (1.50, 1.52), "suffices"),
        ("loss", {"margin": 0.01}, (1.50, 1.52), "baseline"),
        ("loss", {"margin": 0.01}, (1.50, 1.30), "suffices"),
        ("rmse", {"better": "lower", "margin": "1%"}, (100.0, 102.0), "baseline"),
        ("perplexity", {"margin": 0.02}, (20.0, 20.2), "suffices"),
        ("perplexity", {"margin": 0.005}, (20.0, 20.2), "baseline"),
        ("rmse", {"better": "lower", "margin": 3.0}, (100.0, 102.0), "suffices"),
        ("rmse", {"better": "lower", "margin": 0.01, "relative": True}, (100.0, 102.0), "baseline"),
        ("reward", {"better": "higher", "margin": 3.0}, (100.0, 102.0), "suffices"),
        ("reward", {"better": "higher", "margin": 3.0}, (-100.0, -104.0), "baseline"),
    ],
)
def test_a_metric_has_the_right_direction_and_unit(tmp_path, metric, options, values, outcome):
    train = losing(dict(zip(("standard", "efficient"), values, strict=True)))
    done = run(train, tmp_path, metric=metric, **options)
    assert done.verdict.outcome == outcome
    (comparison,) = done.verdict.comparisons
    is_better = (values[1] > values[0]) == (options.get("better") == "higher")
    assert (comparison.difference.mean > 0) == is_better
    assert f"test {metric}" in str(done)
    assert read_results(tmp_path / "results.json") == done.results
    assert metric in done.page.read_text()


def test_baseline_and_title_are_those_that_are_given(tmp_path):
    values = {"standard": 1.5, "efficient": 1.3, "mqa": 1.42}
    options = {"metric": "loss", "margin": 0.5, "baseline": "mqa", "title": "Mine"}
    done = run(losing(values), tmp_path, tuple(values), **options)
    scores = {
        name: value + 0.001 * np.arange(3) * (1 + len(name) % 2) for name, value in values.items()
    }
    found = {c.mechanism: c.difference.mean for c in done.verdict.comparisons}
    assert found == pytest.approx(
        {name: (scores["mqa"] - scores[name]).mean() for name in ("standard", "efficient")}
    )
    assert done.results.title == "Mine"


def test_rows_of_a_metric_that_is_any_number_are_kept_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    errors = rng.uniform(10, 12, size=200)

    def train(attention, seed):
        attention(16, 2)(torch.zeros(1, 8, 16))
        noise = np.random.default_rng(seed).normal(scale=0.01, size=200)
        return errors + noise + (0.02 if attention.name == "efficient" else 0.0)

    for relative, margin in ((False, 0.1), (True, 0.01)):
        options = {"metric": "error", "better": "lower", "relative": relative, "margin": margin}
        done = run(train, tmp_path / str(relative), **options)
        (comparison,) = done.verdict.comparisons
        assert (done.verdict.outcome, comparison.rows) == ("suffices", 200)
        expected = -0.02 / errors.mean() if relative else -0.02
        assert comparison.difference.mean == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"better": "more"}, "lower"),
        ({"metric": "rmse", "relative": True}, "better="),
        ({"metric": "loss", "margin": -1.0}, "margin=-1"),
        ({"margin": 0.5}, "'50 points' .* '0.5 points'"),
        ({"margin": "1 nat"}, "nat"),
        ({"metric": "perplexity", "margin": 2.0}, "margin=2"),
        ({"metric": "rmse"}, 'better="lower"'),
        ({"metric": "rmse", "better": "lower", "relative": True}, "above 0"),
    ],
)
def test_a_metric_that_cannot_be_judged_is_refused(tmp_path, options, message):
    train, _ = counted(-3.0 if options.get("relative") else 3.0)
    with pytest.raises(ConfigError, match=message):
        run(train, tmp_path, **options)


def test_another_direction_is_another_comparison(tmp_path):
    train = losing({"standard": 0.5, "efficient": 0.4})
    run(train, tmp_path, metric="error", better="lower")
    with pytest.raises(ConfigError, match="better differs"):
        run(train, tmp_path, metric="error", better="higher")


# what a training costs


def trained_by(optimised, *, hidden=32):
    """Return a loop of a real model; `optimised` makes its optimiser, None leaves it out."""

    def train(attention, seed):
        model = nn.Sequential(nn.Linear(8, 8), attention(8, 2), nn.Linear(8, hidden))
        optimiser = None if optimised is None else optimised(model.parameters())
        for _ in range(2):
            model(torch.zeros(1, 4, 8)).sum().backward()
            if optimiser is not None:
                optimiser.step()
        return 0.7 + seed / 100

    return train


@pytest.mark.parametrize("optimised", [torch.optim.AdamW, functools.partial(torch.optim.SGD, lr=1)])
def test_parameters_are_those_that_are_trained(tmp_path, optimised):
    results = run(trained_by(optimised), tmp_path, seeds=1).results
    around = 8 * 8 + 8 + 8 * 32 + 32
    assert [c.parameters_model - c.parameters_layer for c in results.cells] == [around] * 2
    cost = next(one for one in tables(results, judge(results)) if one.title == "Cost")
    assert cost.columns == ("mechanism", "heads", "layer", "trained", "FLOPs", "training")
    alone = run(trained_by(None), tmp_path / "alone", seeds=1).results
    assert all(c.parameters_model == c.parameters_layer for c in alone.cells)


def test_the_warm_up_of_the_first_training_is_no_cost():
    slow, usual = 0.695, (0.15, 0.16, 0.9, 0.14)
    cells = [
        replace(make_cell("standard", 4, seed, epochs=0), seconds_per_epoch=time)
        for seed, time in enumerate((slow, *usual))
    ]
    results = make_results([*cells, *(replace(c, mechanism="efficient") for c in cells)])
    cost = next(one for one in tables(results, judge(results)) if one.title == "Cost")
    assert {line.cells[-1] for line in cost.lines} == {"155 ms"}


def test_what_is_compared_is_printed(tmp_path):
    values = {"standard": 0.9, "efficient": 0.8, "mqa": 0.9}
    printed = str(run(losing(values), tmp_path, tuple(values)))
    verdict = judge(read_results(tmp_path / "results.json"))
    for compared in verdict.comparisons:
        start = f"{compared.mechanism} "
        *_, line = (one for one in printed.splitlines() if one.startswith(start) and "]" in one)
        assert verdict.metric.difference(compared.difference.mean) in line
        assert compared.sufficiency in line


# what is not a function


class Called:
    """An object that trains when it is called."""

    def __init__(self, score):
        self.score = score

    def __call__(self, attention, seed):
        """Train."""
        attention(8, 2)
        return self.score


def scored_by(attention, seed, score):
    """Return a score."""
    attention(8, 2)
    return score


@pytest.mark.parametrize("make", [Called, lambda score: functools.partial(scored_by, score=score)])
def test_partials_and_objects_train_and_their_arguments_count(tmp_path, make):
    done = run(make(0.75), tmp_path, seeds=1)
    assert done.results.recipe in ("Called", "scored_by")
    assert {cell.test_accuracy for cell in done.results.cells} == {0.75}
    with pytest.raises(ConfigError, match="source"):
        run(make(0.5), tmp_path, seeds=1)


@pytest.mark.parametrize("given", ["data.csv", 3, None, {"text": ["a"]}, np.zeros((2, 2))])
def test_what_is_no_function_is_refused_with_what_compare_takes(given):
    with pytest.raises(ConfigError, match=f"attention, seed.*{type(given).__name__}"):
        suffice.compare(given)


@pytest.mark.parametrize("mechanisms", ["standard", 3, {"standard": "standard", "mine": 7}, ()])
def test_mechanisms_that_are_none_are_refused(mechanisms):
    with pytest.raises(ConfigError, match="mechanism"):
        suffice.compare(counted()[0], mechanisms)


class Averaging(nn.Module):
    """A layer that no spec describes: the mean of the tokens, mapped."""

    def __init__(self, d_model, num_heads, causal=False):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.map(x.mean(dim=1, keepdim=True)).expand_as(x)


def test_any_module_is_compared_at_its_counted_cost(tmp_path):
    train, _ = counted()
    done = run(train, tmp_path, {"standard": "standard", "mean": Averaging})
    cells = {cell.mechanism: cell for cell in done.results.cells}
    assert cells["mean"].flops == 2 * 16 * 16  # of one sample, whatever the batch
    assert cells["mean"].parameters_layer == 16 * 17
    assert cells["standard"].flops == preset("standard", 16, 2, causal=True).cost(8).flops
    assert (done.verdict.outcome, done.verdict.winner.mechanism) == ("suffices", "mean")
    (told,) = (note for note in notes(done.verdict, done.results) if "FLOP counter" in note)
    assert told.startswith("FLOPs of mean: ")
    again = run(train, tmp_path, {"standard": "standard", "mean": Averaging})
    assert str(again) == str(done)


def test_factories_of_models_take_what_the_loop_gives_them(tmp_path):
    def small(classes, *, length):
        return nn.Sequential(nn.Flatten(), nn.Linear(length, classes))

    def large(classes, *, length):
        return nn.Sequential(nn.Flatten(), nn.Linear(length, 64), nn.Linear(64, classes))

    def train(make, seed):
        model = make(3, length=8)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(5, 8)).sum().backward()
        optimiser.step()
        return 0.9

    done = run(train, tmp_path, {"large": large, "small": small})
    cells = {cell.mechanism: cell for cell in done.results.cells}
    assert cells["small"].flops == 2 * 8 * 3
    assert cells["large"].flops == 2 * 64 * (8 + 3)
    assert cells["small"].parameters_model == 9 * 3
    assert done.verdict.winner.mechanism == "small"


def test_a_module_that_fails_leaves_no_counter_behind():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    layer = AttentionMaker(Failing, "failing")()
    with pytest.raises(RuntimeError, match="no"):
        layer(torch.zeros(1))
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_printed_comparison_shows_differences_and_costs(tmp_path):
    text = str(run(counted()[0], tmp_path))
    for name in ("standard", "efficient", "verdict", "95% CI", "FLOPs", "training"):
        assert name in text
