"""A few random cases of every part, and those that once failed."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from pathlib import Path

import pytest

from suffice import AttentionSpec
from suffice.errors import ConfigError, SufficeError
from suffice.text import Characters
from suffice.text.token_file import TokenFile, starts_at
from tools.fuzz import specs
from tools.fuzz.__main__ import run
from tools.fuzz.damage import data_of, places
from tools.fuzz.parts import PARTS, refused

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


READERS = {"specs": read_spec, "tokens": read_tokens}


@pytest.mark.parametrize("found", CORPUS, ids=lambda found: f"{found['part']}-{found['what']}")
def test_what_once_failed_is_refused(found, tmp_path):
    with pytest.raises(SufficeError) as refusal:
        READERS[found["part"]](found["input"], tmp_path)
    assert refused(refusal.value)


@pytest.mark.parametrize("first", range(0, 200, 8))
def test_random_specs_are_the_formula(first):
    """Eight in a row; most are legal."""
    legal = 0
    for seed in range(first, first + 8):
        with contextlib.suppress(ConfigError):
            specs.check(random.Random(seed))
            legal += 1
    assert legal > 3


@pytest.mark.parametrize("first", range(0, 240, 8))
def test_random_operations_are_the_formula(first):
    for seed in range(first, first + 8):
        specs.check_ops(specs.Draw(seed))


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
