"""Perplexity against losses of each window alone."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suffice import preset
from suffice.comparison.evaluation import (
    ALARM,
    FAILED,
    ask,
    measure_recall,
    passkey,
    perplexity,
    receptive_field,
    repeated,
    sees_pairs,
    state_bytes,
)
from suffice.errors import ConfigError
from suffice.mixing import Alignment
from suffice.models import LMConfig, configuration
from suffice.patterns import Causal, Global, Window
from suffice.text import Characters, Corpus, Documents

TOKENIZER = Characters("\n :.?APQT[]abcdefghinorstuwxyz")


@pytest.fixture(scope="module")
def lm():
    torch.manual_seed(0)
    config, specs = configuration(
        "nanogpt_char_cpu", vocabulary_size=TOKENIZER.vocabulary_size, length=32
    )
    model = config.build(specs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4.0
    return model


def test_perplexity_reads_every_token_once(lm, tmp_path):
    path = tmp_path / "text.txt"
    text = "the cat is on the rat. " * 40
    path.write_text(text)
    found = perplexity(lm, TOKENIZER, data=str(path))
    scores = {score.name: score for score in found.scores}
    ids = TOKENIZER.encode(text[: int(len(text) * 0.9)]) + TOKENIZER.encode(
        text[int(len(text) * 0.9) :]
    )
    windows = [ids[n : n + 33] for n in range(0, len(ids) - 1, 32)]
    sums = []
    for row in windows:
        with torch.no_grad():
            logits = lm(torch.tensor([row[:-1]]))[0]
        sums.append(float(F.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")))
    wanted = sum(sums) / (len(ids) - 1)
    assert found.items == found.of == len(windows)
    assert scores["loss"].value == pytest.approx(wanted, rel=1e-5)
    means = [s / (len(row) - 1) for s, row in zip(sums, windows, strict=True)]
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert scores["loss"].standard_error == pytest.approx(error, rel=1e-4)
    assert scores["perplexity"].value == pytest.approx(math.exp(wanted), rel=1e-5)
    assert scores["bits_per_byte"].value == pytest.approx(wanted / math.log(2), rel=1e-5)
    few = perplexity(lm, TOKENIZER, data=str(path), limit=18)
    assert (few.items, few.of) == (18, len(windows))
    assert few.scores[0].value == pytest.approx(sum(sums[:18]) / (18 * 32), rel=1e-5)
    assert perplexity(lm, TOKENIZER, data=str(path), limit=16).items == 16
    assert perplexity(lm, TOKENIZER, data=str(path), limit=1).scores[0].standard_error is None
    with pytest.raises(ConfigError, match="limit=0"):
        perplexity(lm, TOKENIZER, data=str(path), limit=0)


def test_a_named_corpus_gives_its_test_or_validation_part(lm, monkeypatch):
    def made(name, **parts):
        read = {n: Documents(name=n, read=lambda t=t: [t]) for n, t in parts.items()}
        return Corpus(name=name, source="made up", **read)

    module = sys.modules["suffice.comparison.evaluation"]
    parts = {"train": "a" * 99, "validation": "b" * 66, "test": "c" * 34}
    monkeypatch.setattr(module, "corpus", lambda _: made("wikitext2", **parts))
    assert perplexity(lm, TOKENIZER, data="wikitext2").of == 2
    del parts["test"]
    monkeypatch.setattr(module, "corpus", lambda _: made("stdlib", **parts))
    assert perplexity(lm, TOKENIZER, data="stdlib").of == 3


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


WINDOW = preset("sliding_window", 16, 2, window=4, causal=True)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_what_lies_beyond_the_reach_is_not_attended_and_what_lies_at_it_is(window):
    specs = [preset("sliding_window", 16, 2, window=w, causal=True) for w in (window, 3)]
    far = receptive_field(specs)
    assert far == window - 1 + 2
    torch.manual_seed(0)
    model = LMConfig(**SIZES, start=0.3).build(specs).eval()
    tokens = torch.randint(30, (1, 20))
    for back, attended in ((far, True), (far + 1, False)):
        other = tokens.clone()
        other[0, 19 - back] = (other[0, 19 - back] + 1) % 30
        same = torch.equal(model(tokens)[0, 19], model(other)[0, 19])
        assert same != attended, back


def test_what_is_no_pattern_reaches_any_number():
    infini = preset("infini", 16, 2, segment=4)
    mixed = replace(WINDOW, mixing=Alignment(32))
    linear = preset("linear", 16, 2, causal=True)
    for spec in (infini, mixed, linear):
        assert not sees_pairs(spec)
        assert receptive_field([WINDOW, spec]) is None
        assert receptive_field([spec], cache_tokens=3) is None
    assert sees_pairs(FULL)
    assert receptive_field([WINDOW, FULL]) is None
    assert receptive_field([WINDOW, FULL], cache_tokens=3) == 2 + 2


def test_state_is_that_of_what_can_still_be_seen():
    assert state_bytes([FULL], 10) == 10 * 2 * 16 * 4
    assert state_bytes([WINDOW, FULL], 10) == (4 + 10) / 2 * 2 * 16 * 4
    assert state_bytes([WINDOW], 3) == 3 * 2 * 16 * 4
    linear = preset("linear", 16, 2, causal=True)
    assert state_bytes([linear], 10) == state_bytes([linear], 1000) > 0
