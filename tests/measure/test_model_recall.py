from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from suffice import preset
from suffice.errors import ConfigError
from suffice.measure.evaluation import ALARM, FAILED, ask, measure_recall, passkey, repeated
from suffice.models import LMConfig
from suffice.patterns import Causal, Global, Window

SIZES = {"vocabulary_size": 40, "length": 64, "d_model": 16, "depth": 2, "mlp_width": 16}
FULL = preset("standard", 16, 2, causal=True)
SINKS = replace(FULL, pattern=(Window(4) | Global(2)) & Causal())
SYMBOLS = torch.arange(2, 40)


def model(spec=FULL):
    torch.manual_seed(0)
    return LMConfig(**SIZES).build(spec).eval()


class Copier(nn.Module):
    """Says again what followed the token last time, as far back as it attends."""

    device = torch.device("cpu")

    def __init__(self, specs, reach=1000):
        super().__init__()
        self.specs, self.reach = specs, reach

    def features(self, tokens):
        found = torch.zeros(*tokens.shape, 40)
        for row, at in torch.cartesian_prod(*map(torch.arange, tokens.shape)).tolist():
            for back in range(at - 1, max(at - self.reach, -1), -1):
                if tokens[row, back] == tokens[row, at]:
                    found[row, at, tokens[row, back + 1]] = 9.0
                    break
        return found

    def logits(self, features):
        return features


@pytest.mark.parametrize("begin", [None, 1])
def test_a_stretch_comes_again_and_its_continuation_is_scored(begin):
    given = repeated(SYMBOLS, length=16, rows=5, begin=begin)
    first = 0 if begin is None else 1
    assert given.rows.shape == (5, 32 + first)
    assert begin is None or given.rows[:, 0].tolist() == [1] * 5
    stretch, again = given.rows[:, first : first + 16], given.rows[:, first + 16 :]
    assert torch.equal(stretch, again)
    assert all(len(set(row)) == 16 for row in stretch.tolist())
    assert torch.equal(given.rows[:, given.query_positions + 1], given.answers)
    assert torch.equal(given.rows[:, given.query_positions - given.back], given.answers)
    assert torch.equal(given.rows[:, given.before + 1], given.answers)
    assert given.chance == pytest.approx(sum(1 / n for n in range(1, 16)) / 15)


def test_the_control_has_another_order_of_the_same_tokens():
    given = repeated(SYMBOLS, length=16, rows=50, begin=None, shuffled=True)
    stretch, again = given.rows[:, :16], given.rows[:, 16:]
    assert torch.equal(stretch.sort().values, again.sort().values)
    assert float((stretch == again).double().mean()) < 0.2
    assert given.must_fail


@pytest.mark.parametrize(("depth", "begin"), [(0.0, None), (0.5, 1), (1.0, 1)])
def test_the_key_stands_once_behind_its_cue(depth, begin):
    given = passkey(SYMBOLS, length=40, depth=depth, rows=5, begin=begin)
    assert given.chance == 1 / len(SYMBOLS)
    assert given.rows.shape == (5, 40)
    assert torch.equal(given.rows[:, given.query_positions - given.back], given.answers)
    for row, answers in zip(given.rows.tolist(), given.answers.tolist(), strict=True):
        cue = row[-4:-2]
        at = row.index(cue[0])
        assert row[at : at + 5] == [*cue, *answers]
        assert row[-2:] == answers[:2]
        assert [row.count(token) for token in (*cue, *answers)] == [2, 2, 2, 2, 1]
    other = passkey(SYMBOLS, length=40, depth=depth, rows=5, begin=begin, shuffled=True)
    assert torch.equal(other.answers, given.answers)
    assert torch.equal(other.rows[:, :-4], given.rows[:, :-4])
    assert not set(other.rows[0, -4:].tolist()) & set(other.rows[0, :-4].tolist())


def test_who_copies_recalls_and_fails_where_nobody_can():
    copier = Copier([FULL, FULL])
    given = {"rows": 6, "begin": None}
    one = ask(copier, repeated(SYMBOLS, length=16, **given))
    assert (one.accuracy.mean, one.verdict) == (1.0, "recalled")
    assert one.gain.mean > 3.0
    key = ask(copier, passkey(SYMBOLS, length=40, depth=0.3, **given))
    assert (key.accuracy.mean, key.gain, key.verdict) == (1.0, None, "recalled")
    for questions in (
        repeated(SYMBOLS, length=16, shuffled=True, **given),
        passkey(SYMBOLS, length=40, depth=0.3, shuffled=True, **given),
    ):
        assert ask(copier, questions).verdict == FAILED
    short = ask(Copier([FULL], reach=10), repeated(SYMBOLS, length=16, **given))
    assert short.verdict == "at chance"


def test_beyond_the_window_a_recall_is_an_alarm():
    window = preset("sliding_window", 16, 2, window=4, causal=True)
    given = repeated(SYMBOLS, length=16, rows=6, begin=None)
    one = ask(Copier([window]), given)
    assert (one.control, one.verdict) == ("3 tokens back can be attended to", ALARM)
    assert ask(Copier([window], reach=4), given).verdict == FAILED


def test_a_model_is_asked_at_every_length():
    told = []
    report = measure_recall(
        model(SINKS), range(2, 40), begin=1, rows=9, step=lambda *of: told.append(of)
    )
    assert {one.back for one in report.recalls if one.name == "a stretch again"} == {15}
    assert len(report.recalls) == 2 + 2 * 6
    assert report.rows == report.recalls[0].accuracy.n == 9
    assert (report.reach, report.alarms) == (None, ())
    assert told == [(done, 14) for done in range(1, 15)]
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (data["task"], data["alarms"], len(data["recalls"])) == ("recall", 0, 14)
    longer = LMConfig(**SIZES | {"length": 131}).build(FULL).eval()
    report = measure_recall(longer, range(40), rows=2)
    assert [one.back for one in report.recalls if one.name == "a stretch again"] == [15, 31]
    at_end = [one.back for one in report.recalls if one.name == "passkey at 100%"]
    assert (at_end, len(report.recalls)) == ([4, 4, 4], 2 * 2 + 3 * 6)


@pytest.mark.parametrize(
    ("sizes", "symbols", "rows", "named"),
    [({"length": 31}, 40, 1, "31 tokens"), ({}, 15, 1, "15 symbols"), ({}, 40, 0, "rows=0")],
)
def test_what_is_too_small_is_refused(sizes, symbols, rows, named):
    small = LMConfig(**SIZES | sizes).build(FULL)
    with pytest.raises(ConfigError, match=named):
        measure_recall(small, range(symbols), rows=rows)
