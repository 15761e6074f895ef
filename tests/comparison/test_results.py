from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from suffice.comparison.results import Results, Speed, check_margin
from suffice.errors import ConfigError, DataError

from .synthetic import make_cell, make_results, realistic


def test_a_comparison_survives_json_exactly():
    results = realistic(heads=(1, 4), seeds=2, epochs=4)
    text = json.dumps(results.to_json(), allow_nan=False)
    assert Results.from_json(json.loads(text), where="results.json") == results


def test_numbers_json_lacks_survive():
    cell = replace(make_cell(), test_loss=math.inf, train_loss=-math.inf)
    odd = replace(cell, seed=1, test_loss=math.nan)
    text = json.dumps(make_results([cell, odd]).to_json(), allow_nan=False)
    back = Results.from_json(json.loads(text), where="results.json")
    assert back.cells[0] == cell
    assert math.isnan(back.cells[1].test_loss)


def test_whole_numbers_are_read_as_floats_where_a_float_belongs():
    given = make_results([make_cell()]).to_json()
    given["seconds"] = 3
    back = Results.from_json(given, where="results.json")
    assert back.seconds == 3.0
    assert isinstance(back.seconds, float)


def test_answers_and_chance_survive_and_may_be_absent():
    asked = make_results([make_cell()], answers=8.0, chance=0.125)
    assert Results.from_json(asked.to_json(), where="f.json") == asked
    older = make_results([make_cell()]).to_json()
    assert (older.pop("answers"), older.pop("chance")) == (1.0, None)
    assert Results.from_json(older, where="f.json") == make_results([make_cell()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": 0.5}, r"answers=0\.5 of a row must be at least 1"),
        ({"answers": math.nan}, r"answers=nan of a row must be at least 1"),
        ({"chance": 1.5}, r"chance=1\.5 is not a fraction"),
        ({"chance": math.nan}, r"chance=nan is not a fraction"),
    ],
)
def test_results_refuse_impossible_answers_and_chances(change, message):
    with pytest.raises(ConfigError, match=message):
        make_results([make_cell()], **change)


def test_pauses_are_no_cost_whether_cpu_seconds_were_kept_or_not():
    cell = make_cell(epochs=3)
    steady = [{**epoch, "seconds": 2.0} for epoch in cell.epochs]
    paused = [steady[0], {**steady[1], "seconds": 1_391.0}, steady[2]]
    assert replace(cell, epochs=tuple(paused)).cost_seconds == 6.0
    counted = tuple({**epoch, "cpu_seconds": 1.5} for epoch in paused)
    assert replace(cell, epochs=counted).cost_seconds == 4.5
    unknown = (*counted[:2], {**counted[2], "cpu_seconds": None})  # resumed from an older file
    assert replace(cell, epochs=unknown).cost_seconds == 6.0
    for epochs in (paused, counted, unknown):  # older files lack the field, newer ones have it
        kept = make_results([replace(cell, epochs=tuple(epochs))])
        assert Results.from_json(json.loads(json.dumps(kept.to_json())), where="x") == kept
    assert make_cell(epochs=0).cost_seconds == make_cell(epochs=0).seconds_per_epoch


def test_pairs_select_and_speed_find_their_own():
    results = realistic(heads=(4, 1), seeds=3, epochs=3)
    assert results.pairs()[0] == ("standard", 4)
    assert len(results.pairs()) == 8
    assert [cell.seed for cell in results.select("efficient", 1)] == [0, 1, 2]
    assert {cell.mechanism for cell in results.select("efficient", 1)} == {"efficient"}
    assert results.speed("efficient", 1).key == ("efficient", 1)
    assert results.speed("efficient", 2) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.update(margn=0.1), r"f\.json has the unknown key 'margn'; did you mean 'mar"),
        (lambda g: g.update(zzz=1), r"f\.json has the unknown key 'zzz'\. Legal: task, recipe"),
        (lambda g: g.pop("margin"), r"f\.json lacks margin; it must hold task, recipe"),
        (lambda g: g.update(margin="0.1"), r"f\.json: margin is '0\.1'; it must be a number"),
        (lambda g: g.update(margin=True), r"margin is True; it must be a number"),
        (lambda g: g.update(margin=2), r"value that is not legal: margin=2 is not a fraction"),
        (lambda g: g.update(task=3), r"f\.json: task is 3 of type int; it must be of type str"),
        (lambda g: g.update(cells={}), r"f\.json: cells is \{\} of type dict; .* type list"),
        (lambda g: g.update(machine=[]), r"f\.json: machine is \[\] of type list; .* type dict"),
        (
            lambda g: g["cells"][0].update(seed=1.5),
            r"f\.json: cells\[0\]: seed is 1\.5 of type float; it must be of type int",
        ),
        (
            lambda g: g["cells"][0].update(seed=True),
            r"f\.json: cells\[0\]: seed is True of type bool; it must be of type int",
        ),
        (
            lambda g: g["cells"][0].update(stopped_early=0),
            r"stopped_early is 0 of type int; it must be of type bool",
        ),
        (
            lambda g: g["cells"][0]["epochs"][0].pop("seconds"),
            r"f\.json: cells\[0\]: epochs\[0\] lacks seconds",
        ),
        (
            lambda g: g["cells"].append(g["cells"][0]),
            r"cell \('standard', 4, 0\) is given more than once",
        ),
    ],
)
def test_altered_json_is_refused_by_name(change, message):
    given = make_results([make_cell()]).to_json()
    change(given)
    with pytest.raises(DataError, match=message):
        Results.from_json(given, where="f.json")


def test_json_that_is_no_object_is_refused():
    with pytest.raises(DataError, match=r"f\.json is \[1\] of type list; it must be of type dict"):
        Results.from_json([1], where="f.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": -1}, "num_heads=-1"),
        ({"flops": -1}, "flops=-1 must be at least 0"),
        ({"test_accuracy": 97.4}, "test_accuracy=97.4 is not a fraction"),
        ({"train_top5": -0.1}, "train_top5=-0.1 is not a fraction"),
        ({"test_accuracy": math.nan}, "test_accuracy=nan is not a fraction"),
    ],
)
def test_a_cell_refuses_impossible_values(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(make_cell(), **change)


@pytest.mark.parametrize("latency", [(), (0.0,), (0.1, -1.0), (math.nan,)])
def test_a_speed_needs_positive_times(latency):
    with pytest.raises(ConfigError, match="needs one positive time in seconds per round"):
        Speed(mechanism="a", num_heads=1, latency=latency, batch_size=1, peak_bytes=0)


def test_a_speed_refuses_an_empty_batch():
    with pytest.raises(ConfigError, match="batch_size=0 must be at least 1"):
        Speed(mechanism="a", num_heads=1, latency=(0.1,), batch_size=0, peak_bytes=0)


def test_results_refuse_a_speed_given_twice():
    speed = Speed(mechanism="a", num_heads=1, latency=(0.1,), batch_size=1, peak_bytes=0)
    with pytest.raises(ConfigError, match=r"speed \('a', 1\) is given more than once; keep one"):
        make_results(speeds=[speed, speed])


@pytest.mark.parametrize("margin", [-0.01, 1.0, math.nan])
def test_a_margin_is_a_fraction(margin):
    with pytest.raises(ConfigError, match="is not a fraction of accuracy"):
        check_margin(margin)
