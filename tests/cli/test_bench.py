"""`suffice bench`: figures of a model, alone and beside others."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from suffice.choose.bench import Part
from suffice.choose.bench import bench as measure
from suffice.cli.bench import print_bench
from suffice.memory import Dynamic
from suffice.models import folder
from suffice.text import Characters
from tests.comparison import tiny

SHORT = ("--tokens", 4, "--prompt", 8, "--rounds", 1, "--threads", 1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let the shape be a tiny one."""
    monkeypatch.setattr(
        "suffice.choose.bench.shaped", lambda shape, mechanism: tiny.llama(mechanism)
    )


def saved(path):
    tokenizer = Characters.of(["to be or not to be"])
    folder.save(path, tiny.llama(vocabulary_size=tokenizer.vocabulary_size), tokenizer)


def test_figures_of_a_shape(suffice, tmp_path):
    before = torch.get_num_threads()
    result = suffice("bench", "--shape", "15m", *SHORT)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("15m: ")
    assert torch.get_num_threads() == before
    found = json.loads(suffice("bench", "--shape", "15m", *SHORT, "--json").stdout)
    assert found["found"]["tokens"] == 4
    assert found["found"]["threads"] == 1
    assert found["asked"] == {"shape": "15m", "bits": None, "memory": "dynamic"}


def test_figures_of_a_checkpoint(suffice, tmp_path):
    saved(tmp_path / "run")
    result = suffice("bench", "run", *SHORT, "--bits", 32, "--memory", "rolling:4")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "run: " in result.stdout
    assert "32 bits, memory rolling:4" in result.stdout


@pytest.mark.parametrize(("mechanism", "bits"), [("efficient", "8"), ("standard", "8:4")])
def test_another_mechanism_and_a_rounded_memory(suffice, mechanism, bits):
    words = ("--mechanism", mechanism, "--quantise-memory", bits)
    result = suffice("bench", "--shape", "110m", *SHORT, *words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"memory dynamic in {bits} bits" in result.stdout
    assert ("part of a token" in result.stdout) == (
        "a step native" in " ".join(result.stdout.split())
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the folder of a model or --shape 15m or 110m."),
        ((".", "--shape", "15m"), "not both . and --shape 15m"),
        ((".", "--mechanism", "efficient"), ". has its own; leave it out"),
        (("--shape", "15m", "--tokens", 1), "--tokens 1: give at least 2"),
        (("--shape", "15m", "--threads", 0), "--threads 0: give at least 1"),
        (("--shape", "15m", "--memory", "all"), "unknown --memory 'all'"),
        (("--shape", "15m", "--bits", 5), "bits=5: give 32, 16, 8, 4"),
        (("--shape", "15m", "--memory", "static:9", *SHORT), "which has 9"),
    ],
)
def test_refusals(suffice, words, said):
    result = suffice("bench", *words)
    assert result.exit_code == 2
    assert said in result.message


def test_shares_of_the_bound_that_cannot_be_are_explained():
    result = measure(tiny.llama(), Dynamic(), prompt=4, new=2, rounds=1)
    for seconds, share, below, above in ((-1.0, "", 1, 0), (4.0, "75%", 0, 0), (2.0, "150%", 0, 1)):
        parts = (
            Part(name="a", nbytes=30, flops=9, seconds=12.0),
            Part(name="b", nbytes=30, flops=9, seconds=seconds),
        )
        console = Console(file=StringIO(), width=80)
        print_bench(console, replace(result, parts=parts, bandwidth=10.0), "x", None, "dynamic")
        said = console.file.getvalue()
        (row,) = [line.split() for line in said.splitlines() if line.strip().startswith("b ")]
        assert row[5:] == [share] * bool(share)
        assert [said.count("Below 0"), said.count("Above 100% of the bound")] == [below, above]
