"""A few random cases of every part, and those that once failed."""

from __future__ import annotations

import importlib.util
import json
import random
import struct
from pathlib import Path

import pytest

from suffice import AttentionSpec
from suffice.errors import SufficeError
from suffice.studio.server import advice
from suffice.text import Characters
from suffice.text.token_file import TokenFile, starts_at
from tests.fuzz.__main__ import run
from tests.fuzz.damage import data_of, places
from tests.fuzz.parts import PARTS, refused

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text("utf-8"))
CASES = {"requests": 20, "commands": 10, "models": 8, "specs": 2}


@pytest.mark.parametrize("name", PARTS)
def test_random_cases(name, monkeypatch):
    """The same cases in every run."""
    monkeypatch.setenv("COLUMNS", "80")
    count = run(name, 1, 60.0, CASES.get(name, 40))
    assert count.failures == ()
    assert count.cases == CASES.get(name, 40)


def read_spec(data, _folder):
    AttentionSpec.from_json(data)


def read_tokens(header, folder):
    file = TokenFile.write(folder / "t.bin", ["ab", "c", "a"], Characters("abc"))
    starts = starts_at(file.path)
    text = header.encode() + b" " * (-len(header) % 64) + b"\n"
    starts.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(24))
    TokenFile(file.path)


def read_request(data, _folder):
    advice(data)


READERS = {"specs": read_spec, "tokens": read_tokens, "requests": read_request}


@pytest.mark.parametrize("found", CORPUS, ids=lambda found: f"{found['part']}-{found['what']}")
def test_what_once_failed_is_refused(found, tmp_path):
    with pytest.raises(SufficeError) as refusal:
        READERS[found["part"]](found["input"], tmp_path)
    assert refused(refusal.value)


@pytest.mark.skipif(not importlib.util.find_spec("hypothesis"), reason="hypothesis is absent")
def test_patterns_that_hypothesis_draws():
    from tests.fuzz import patterns

    for check in (patterns.masks, patterns.ops):
        assert patterns.run(check, 1, 5) == 5


def test_an_unexpected_error_is_a_failure_with_its_seed(monkeypatch):
    """Once for each place that raises; a refusal is none."""

    def broken(_part, pick):
        if pick.random() < 0.5:
            raise KeyError("x")

    monkeypatch.setattr(PARTS["specs"], "case", broken)
    count = run("specs", 5, 60.0, 20)
    first = next(s for s in range(5, 25) if random.Random(s).random() < 0.5)
    assert [seed for seed, _ in count.failures] == [first]
    assert not refused(KeyError("no such thing"))


def test_damage_changes_a_copy():
    sound = {"a": [1, {"b": "c"}], "d": None}
    kept = json.dumps(sound)
    damaged = [data_of(random.Random(seed), sound) for seed in range(200)]
    assert json.dumps(sound) == kept
    assert sum(repr(one) != repr(sound) for one in damaged) > 150
    assert len(places(sound)) == 5
