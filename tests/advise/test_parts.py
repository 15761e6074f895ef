"""Compositions are predicted from their parts, as widely as their tasks differ."""

from __future__ import annotations

import numpy as np
import pytest

from suffice.advise import Composition, Request, base_of
from suffice.advise.evidence import Scope
from suffice.advise.parts import Effects, Prediction, Table, known_by, near, parts, table_of, tables
from suffice.recipes import recipe

from .worlds import evidence

SCOPE = Scope(tokens=64, parameters=300_000)
ROWS = ((("a", 1.0),), (("b", 1.0),), (("a", 1.0), ("b", 1.0)), (("c", 2.0),))


def table(task, differences, rows=ROWS, error=0.002, **fields):
    count = len(rows)
    values = {"source": f"{task}.json", "recalls": False, "scope": SCOPE, "heads": 4, **fields}
    return Table(
        task=task,
        names=tuple(str(number) for number in range(count)),
        rows=tuple(rows),
        differences=np.array(differences),
        errors=error**2 * (np.eye(count) + 1) / 2,
        costs=np.full(count, 0.5),
        **values,
    )


def drawn(seed, tasks=8, by_task=0.004):
    """Tables of true effects -0.02, +0.01 and 0, which differ between tasks."""
    random = np.random.default_rng(seed)
    for number in range(tasks):
        a, b, c = np.array([-0.02, 0.01, 0.0]) + by_task * random.standard_normal(3)
        noise = 0.002 * (random.standard_normal(4) + random.standard_normal()) / 2**0.5
        yield table(f"task{number}", np.array([a, b, a + b, 2 * c]) + noise)


def parts_of(name, model, heads=4):
    chosen = recipe(model)
    specs = (chosen.specs(one, heads) for one in (name, "standard"))
    return parts(*specs, chosen.model.length)


def test_a_composition_is_the_sum_of_its_parts():
    of = "atlas_shakespeare_300k"
    assert parts_of("standard", of) == ()
    assert parts_of("mqa", of) == parts_of("standard+kv:1", of) == (("shared heads", 2.0),)
    assert parts_of("standard+window:16", of) == (("doublings out of reach", 2.0),)
    both = dict(parts_of("efficient+kv:1", of))
    assert both == {"encoder Efficient": 1.0, "shared heads": 2.0}
    assert dict(parts_of("linear+softmax:2", of)) == {"kernel Elu": 0.5}
    assert dict(parts_of("cla", of))["shared layers"] == 0.5
    assert "combine Gated" in dict(parts_of("retnet", of))
    assert parts_of("mqa", "atlas_translation_es_300k") == (("shared heads", 2.0),)


def test_sums_of_parts_are_found_again():
    effects = Effects(list(drawn(0)))
    for row, truth in zip(ROWS, (-0.02, 0.01, -0.01, 0.0), strict=True):
        prediction = effects.predict(row)
        assert prediction.low < truth < prediction.high
        assert prediction.tasks == 8
        assert prediction.high - prediction.low < 0.06


def test_intervals_hold_the_next_task_as_often_as_they_say():
    inside = []
    for seed in range(40):
        *known, new = drawn(seed)
        effects = Effects(known)
        for row, difference in zip(new.rows, new.differences, strict=True):
            prediction = effects.predict(row)
            inside.append(prediction.low < difference < prediction.high)
    assert 0.9 <= np.mean(inside) <= 1.0


def test_a_composition_of_tried_parts_is_predicted():
    known = [one.where([0, 1, 3]) for one in drawn(1)]
    prediction = Effects(known).predict(ROWS[2])
    assert prediction.low < -0.01 < prediction.high


def test_few_tasks_are_told():
    one, two = list(drawn(2))[:2]
    alone = Effects([one]).predict(ROWS[0])
    assert (alone.low, alone.high, alone.tasks) == (None, None, 1)
    assert "on 1 task: too few for an interval" in alone.sentence
    assert not alone.suffices(0.5)
    pair = Effects([one, two]).predict(ROWS[0])
    eight = Effects(list(drawn(2))).predict(ROWS[0])
    assert pair.high - pair.low > 2 * (eight.high - eight.low)
    assert " by its parts, on 2 tasks" in pair.sentence


def test_two_sizes_of_one_task_are_one_task():
    one, two = list(drawn(2))[:2]
    same = table(one.task, two.differences)
    assert Effects([one, same]).predict(ROWS[0]).low is None


def test_what_was_never_tried_is_not_predicted():
    assert Effects(list(drawn(3))).predict((("a", 1.0), ("new", 1.0))) is None


def test_an_interval_within_the_margin_suffices():
    prediction = Prediction(mean=-0.002, low=-0.008, high=0.004, tasks=5)
    assert prediction.sentence == "-0.2 points [-0.8, +0.4] by its parts, on 5 tasks"
    assert prediction.suffices(0.01)
    assert not prediction.suffices(0.005)
    assert known_by((), prediction, 0.01) == "its parts"
    assert known_by((), prediction, 0.005) == ""
    assert known_by((), None, 0.01) == ""


def test_a_comparison_is_not_enough_where_all_tables_expect_more():
    shown = (evidence("suffices"),)
    loses = Prediction(mean=-0.02, low=-0.05, high=0.01, tasks=5)
    assert known_by(shown, None, 0.01) == "a comparison"
    assert known_by(shown, loses, 0.01) == ""
    assert known_by(shown, loses, 0.03) == "a comparison"


def test_the_package_has_tables():
    known = {one.source: one for one in tables()}
    recalled = known["atlas-mqar-300k.json"]
    assert (recalled.recalls, recalled.task) == (True, "mqar")
    assert "standard+draw:1" not in recalled.names
    assert set(known["v2-imdb.json"].names) == {"optimised", "efficient", "super_attention"}
    assert known["scaling-5m.json"].task == known["v2-amazon.json"].task
    found = near(SCOPE, without="imdb")
    assert {"imdb", "mqar"}.isdisjoint(one.task for one in found)
    assert near(Scope(tokens=9_999, parameters=10)) == ()


def test_errors_over_seeds_share_those_of_standard():
    errors = next(one for one in tables() if one.source == "atlas-mqar-300k.json").errors
    assert np.all(np.linalg.eigvalsh(errors) > 0.0)
    assert np.allclose(errors, errors.T)
    assert (errors > 0.0).all()


@pytest.mark.parametrize("task", ["lm", "classify", "image", "translate"])
def test_requests_are_made_of_tried_parts(task):
    base = base_of(Request(task=task))
    of = (base.specs(Composition(mechanism=name)) for name in ("efficient", "standard"))
    assert parts(*of, base.length) == (("encoder Efficient", 1.0),)


def test_a_table_of_one_seed_is_none():
    from tests.measure.synthetic import from_accuracies

    results = from_accuracies({"standard": [0.9], "mqa": [0.9]})
    assert table_of(results, "x") is None
