"""Peers compute what we compute, or are refused; absent ones are skipped."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
import torch

from benchmarks.peers import decoders, llama_cpp
from benchmarks.peers.decoders import (
    MODULES,
    PACKAGES,
    TOLERANCES,
    Absent,
    GreedyPeer,
    Ours,
    check_alike,
    check_installed,
    gain,
    peer,
    relative_error,
    run_of,
    session,
)
from benchmarks.peers.onnx_runtime import has_vnni
from suffice.choose.bench import in_bits, prompt_of
from suffice.errors import ConfigError, StateError, UnsupportedError
from suffice.positions import NoPosition, Rope
from tests.comparison import tiny

ROOM = 64


def made(name, lm, folder, bits=32, rows=1):
    try:
        check_installed(name)
        return peer(name, lm, bits=bits, room=ROOM, folder=folder, rows=rows)
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize("given", [{}, {"tied": False}, {"mechanism": "gqa", "num_kv_heads": 2}])
@pytest.mark.parametrize("name", MODULES)
def test_logits_and_tokens_are_ours(name, given, tmp_path):
    lm = tiny.llama(**given)
    ids = prompt_of(lm, 40)
    side, ours = made(name, lm, tmp_path), Ours(lm)
    check_alike(ours, side, ids)
    exact = 2e-3 if "llama.cpp" in name else 1e-5  # their KV cache has 16 bits
    assert relative_error(ours, side, ids) < exact
    run = side.write(ids, 12)
    assert run.tokens == ours.write(ids, 12).tokens
    assert side.write(ids, 12).tokens == run.tokens
    assert (run.prompt, len(run.token_seconds)) == (40, 11)
    assert run.prefill > 0.0


@pytest.mark.parametrize("name", MODULES)
def test_rows_are_written_as_each_alone(name, tmp_path):
    lm = tiny.llama(mechanism="gqa", num_kv_heads=2)
    first = prompt_of(lm, 24)
    prompts = torch.stack([first, first.flip(0), first.roll(5)])
    side = made(name, lm, tmp_path, rows=3)
    alone = Ours(lm)
    for order in ([0, 1, 2], [2, 0, 1]):
        run = side.write(prompts[order], 8)
        assert run.tokens == alone.write(prompts[order[0]], 8).tokens
        assert run.prompt == 24
    if isinstance(side, GreedyPeer):
        side.reset()
        with torch.inference_mode():
            expected = lm(prompts)[:, -1]
        torch.testing.assert_close(
            torch.tensor(side.read(prompts.numpy())), expected, rtol=0, atol=1e-2
        )


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *product(("llama.cpp", "ik_llama.cpp", "openvino"), (16, 8, 4)),
        *product(("onnxruntime",), (8, 4)),
    ],
)
def test_rounded_weights_are_near(name, bits, tmp_path):
    lm = tiny.llama()
    try:
        side = made(name, lm, tmp_path, bits)
    except StateError as crash:
        pytest.skip(str(crash))
    error = relative_error(Ours(lm), side, prompt_of(lm, 40))
    least = {16: 1e-5, 8: 1e-3, 4: 1e-2}[bits]
    assert least < error < TOLERANCES[bits]


def test_a_peer_has_no_other_bits(tmp_path):
    with pytest.raises(UnsupportedError, match="8 bits"):
        peer("transformers", tiny.llama(), bits=8, room=ROOM, folder=tmp_path)


def test_an_unknown_peer_is_refused():
    with pytest.raises(ConfigError, match="'llama'"):
        check_installed("llama")


def test_a_peer_that_is_absent_names_its_package(monkeypatch):
    for module in {module for modules in PACKAGES.values() for module in modules.values()}:
        monkeypatch.setitem(sys.modules, module, None)
    for name in MODULES:
        with pytest.raises(Absent, match="pip install"):
            check_installed(name)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({"mechanism": "efficient"}, "standard causal attention with"),
        ({"position": NoPosition()}, "standard causal attention with"),
        ({"position": Rope(theta=5e5)}, "standard causal attention with"),
        ({"window": 8}, "standard causal attention with"),
        ({"activation": "gelu"}, "SwiGLU"),
        ({"norm": "layer"}, "RMS norms"),
        ({"bias": True}, "no biases"),
        ({"positions": "learned"}, "no positions beside"),
    ],
)
def test_models_that_are_no_llamas_are_refused(given, lacks, tmp_path):
    with pytest.raises(ConfigError, match=lacks):
        peer("transformers", tiny.llama(**given), bits=32, room=ROOM, folder=tmp_path)


def test_a_model_of_fewer_bits_is_refused(tmp_path):
    for lm in (tiny.llama().half(), in_bits(tiny.llama(), 8)):
        with pytest.raises(ConfigError, match="weights of 32 bits"):
            peer("transformers", lm, bits=32, room=ROOM, folder=tmp_path)


class Counting(GreedyPeer):
    """Its likeliest token is the last one plus 1."""

    name = "counting"

    def reset(self):
        self.read_ids = []

    def read(self, ids):
        self.read_ids.append(ids.tolist())
        return np.eye(9, dtype=np.float32)[(ids[:, -1] + 1) % 9]


def test_greedy_choice_reads_each_token_once():
    side = Counting()
    assert side.write(torch.tensor([3, 5]), 4).tokens == (6, 7, 8, 0)
    assert side.read_ids == [[[3, 5]], [[6]], [[7]], [[8]]]
    logits = side.logits(torch.tensor([3, 5]), torch.tensor([1, 2]))
    assert logits.argmax(1).tolist() == [6, 2, 3]
    assert side.read_ids == [[[3, 5]], [[1]], [[2]]]


def test_greedy_choice_of_rows():
    side = Counting()
    assert side.write(torch.tensor([[3, 5], [1, 2]]), 3).tokens == (6, 7, 8)
    assert side.read_ids == [[[3, 5], [1, 2]], [[6], [3]], [[7], [4]]]


def test_a_crash_of_llama_cpp_is_an_error_here(monkeypatch, tmp_path):
    monkeypatch.setattr(llama_cpp, "TRIAL", "import sys; sys.exit(len(sys.argv[1]) == 0)")
    llama_cpp.check_survives(tmp_path, 8)
    monkeypatch.setattr(llama_cpp, "TRIAL", "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(StateError, match="signal 11"):
        llama_cpp.check_survives(tmp_path, 8)


def test_vnni_is_read_off_the_processors_flags(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert not has_vnni(cpuinfo)
    for flags, expected in (("avx2 avx512f", False), ("avx512_vnni", True), ("avx_vnni", True)):
        cpuinfo.write_text(f"flags: {flags}")
        assert has_vnni(cpuinfo) is expected
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert has_vnni(cpuinfo)


# Sides in turn.

IDS = torch.arange(40)


class Scripted:
    """A side of known rates that logs when it writes."""

    def __init__(self, name, log, seconds=1.0):
        self.name, self.log, self.seconds = name, log, seconds

    def write(self, prompt, new):
        self.log.append((self.name, new))
        ticks = [0.0, *(2.0 + self.seconds * n for n in range(new))]
        return run_of(range(new), len(prompt), ticks)

    def logits(self, prompt, following):
        return torch.full((1 + len(following), 3), self.seconds)


def test_a_session_ends_when_its_time_is_up_but_not_before_some_rounds():
    log, rounds = [], []
    sides = [Scripted(name, log) for name in "ab"]
    runs = session(sides, IDS, 20, 50, seconds=-1.0, each_round=lambda: rounds.append(len(log)))
    assert [len(own) for own in runs.values()] == [decoders.FEWEST] * 2
    assert rounds == [2 + 2 * number for number in range(decoders.FEWEST)]


def test_sides_write_in_rotating_order_after_a_warm_up():
    log = []
    sides = [Scripted(name, log) for name in "abc"]
    runs = session(sides, IDS, 20, 2)
    assert log[:3] == [("a", 8), ("b", 8), ("c", 8)]
    assert [name for name, _ in log[3:]] == [*"abc", *"bca"]
    assert {new for _, new in log[3:]} == {20}
    assert [len(own) for own in runs.values()] == [2, 2, 2]


def test_a_gain_is_the_median_of_the_rounds():
    runs = [Scripted("x", [], seconds).write(IDS, 3) for seconds in (1.0, 2.0, 4.0)]
    slow = [Scripted("y", [], 4.0).write(IDS, 3)] * 3
    assert gain(runs, slow, "decode") == 2.0
    assert gain(runs, slow, "prefill") == 1.0


def test_a_side_that_computes_something_else_is_not_timed():
    lm, other = tiny.llama(), tiny.llama()
    check_alike(Ours(lm), Ours(other, name="other"), IDS)
    other.blocks[1].mlp.up.weight.data *= 1.5
    with pytest.raises(StateError, match="other"):
        check_alike(Ours(lm), Ours(other, name="other"), IDS)
    check_alike(Ours(lm), Ours(other), IDS, 4)
    nothing = Scripted("nothing", [], float("nan"))
    with pytest.raises(StateError, match="nothing"):
        check_alike(nothing, nothing, IDS)
