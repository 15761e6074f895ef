from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from suffice.choose import bench as bench_module
from suffice.choose.bench import (
    ReadBandwidth,
    Writer,
    bench,
    parts,
    reset_peak,
    resident,
)
from suffice.errors import ConfigError
from suffice.generate import generate
from suffice.generate.generate import rates_of
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.ops.native import library
from tests.comparison import tiny

native = pytest.mark.skipif(not library.available(), reason=library.why_not())


def test_every_figure_of_a_model():
    lm = tiny.llama()
    told = bench(lm, Dynamic(), prompt=8, new=4, rounds=2)
    assert told.parameters == sum(p.numel() for p in lm.parameters())
    assert (told.prompt, told.tokens, told.rounds) == (8, 4, 2)
    assert told.weight_bytes == 4 * told.parameters
    assert told.read_bytes == told.weight_bytes + 2 * 2 * 64 * 10 * 4
    assert told.state_bytes >= 2 * 2 * 64 * 11 * 4
    assert told.steps.startswith("native") == bool(told.parts)
    assert bench(lm, Dynamic(), prompt=8, new=4, rounds=1, before=0).peak_bytes > 1 << 20


@pytest.mark.parametrize("tied", [True, False])
def test_packed_numbers_are_numbers_of_the_model(tied):
    lm = tiny.llama(tied=tied)
    numbers = sum(p.numel() for p in lm.parameters())
    whole = bench_module.weight_bytes(lm)
    told = bench(bench_module.in_bits(lm, 8), Dynamic(), prompt=8, new=2, rounds=1)
    assert told.parameters == numbers
    assert told.weight_bytes == bench_module.weight_bytes(lm) < 0.3 * whole
    with pytest.raises(ConfigError, match="the model is packed already"):
        bench_module.in_bits(lm, 4)
    told = bench(bench_module.in_bits(lm, 32), Dynamic(), prompt=8, new=2, rounds=1)
    assert (told.parameters, told.weight_bytes) == (numbers, whole)


def test_a_model_that_native_code_cannot_step_through_has_no_parts():
    told = bench(tiny.llama("performer"), Dynamic(), prompt=8, new=2, rounds=1)
    assert told.steps.startswith("torch")
    assert told.parts == ()


@native
@pytest.mark.parametrize("mechanism", ["standard", "efficient"])
def test_parts_make_up_a_token(mechanism):
    lm = tiny.llama(mechanism, tied=False)
    memory = {"standard": Dynamic(), "efficient": Rolling(8)}[mechanism]
    ids = bench_module.prompt_of(lm, 16)
    found = {part.name: part for part in parts(lm, memory, ids, 1.0)}
    assert list(found) == [
        "queries, keys, values", "attention", "output map", "MLP", "head",
        "embedding, norms, turns", "around the step",
    ]  # fmt: skip
    assert sum(part.seconds for part in found.values()) == pytest.approx(1.0)
    maps = {"standard": 3, "efficient": 1}[mechanism]
    assert found["queries, keys, values"].flops == 2 * 2 * maps * 64 * 64
    assert found["queries, keys, values"].nbytes == 4 * 2 * maps * 64 * 64
    assert found["MLP"].nbytes == 4 * 2 * 3 * 64 * 96
    assert found["head"].nbytes == 4 * 61 * 64
    assert found["attention"].flops == 2 * 4 * 64 * {"standard": 16, "efficient": 8}[mechanism]
    weights, state = bench_module.read_bytes(lm, memory, 16)
    assert found["attention"].nbytes == state
    products = ("queries, keys, values", "output map", "MLP", "head")
    norms = 4 * 64 * 5
    assert sum(found[name].nbytes for name in products) + norms == weights


@native
@pytest.mark.parametrize(("nbytes", "bandwidth"), [(7, 4.0), (9, 6.0)])
def test_a_bandwidth_below_that_of_a_part_is_measured_again(monkeypatch, nbytes, bandwidth):
    rates = iter([3.0, 5.0, 6.0, 2.0])
    part = bench_module.Part(name="MLP", nbytes=nbytes, flops=1, seconds=2.0)
    monkeypatch.setattr(ReadBandwidth, "measure", lambda _: next(rates))
    monkeypatch.setattr(bench_module, "parts", lambda *_: [part])
    result = bench(tiny.llama(), Dynamic(), prompt=8, new=4, rounds=2)
    assert (result.bandwidth, result.bound * result.read_bytes) == (bandwidth, bandwidth)
    if bandwidth == 6.0:  # that of both rounds
        assert result.share == pytest.approx(result.decode / result.bound)


def test_what_a_token_reads():
    lm = tiny.llama()
    weights = bench_module.weight_bytes(lm)
    each = 4 * 2 * 2 * 64  # bytes of a position: keys and values of two layers
    assert weights == 4 * sum(p.numel() for p in lm.parameters())
    assert bench_module.read_bytes(lm, Dynamic(), 50) == (weights, 50 * each)
    assert bench_module.read_bytes(lm, Rolling(8, sinks=2), 50) == (weights, 10 * each)
    assert bench_module.read_bytes(lm, Rolling(80), 50) == (weights, 50 * each)
    eight = Quantised(Dynamic(), bits=8)
    assert bench_module.read_bytes(lm, eight, 50) == (
        weights,
        50 * each,
    )  # the latest are not coded yet
    coded = bench_module.read_bytes(lm, eight, 4000)[1]
    assert 4000 * each / 4 < coded < 4000 * each / 2.5  # numbers of 8 bits, with their ranges
    unequal = bench_module.read_bytes(lm, Quantised(value_bits=4), 4000)[1]
    assert coded - unequal == (4000 - 64) // 64 * 64 * each // 4 // 4  # half a byte a value
    assert bench_module.read_bytes(tiny.llama(window=8), Dynamic(), 50) == (weights, 8 * each)
    apart = tiny.llama(tied=False)
    assert (
        bench_module.read_bytes(apart, Dynamic(), 50)[0]
        == bench_module.weight_bytes(apart) - 4 * 61 * 64
    )


def test_shapes_are_the_published_ones():
    lm = bench_module.shaped("15m", "efficient")
    assert (lm.config.d_model, lm.config.depth, lm.specs[0].num_heads) == (288, 6, 6)
    deviation = lm.blocks[3].mlp.down.weight.std().item()
    assert deviation == pytest.approx(768**-0.5, rel=0.02)
    assert torch.equal(bench_module.prompt_of(lm, 9), bench_module.prompt_of(lm, 9))
    with pytest.raises(ConfigError, match="unknown shape '15b'; did you mean '15m'"):
        bench_module.shaped("15b")


def test_bits():
    lm = tiny.llama()
    assert bench_module.in_bits(lm, 32) is lm
    whole, ids = bench_module.weight_bytes(lm), bench_module.prompt_of(lm, 12)
    expected = tiny.llama()(ids[None])
    for bits, most in {16: 0.51, 8: 0.3, 4: 0.2}.items():
        small = bench_module.in_bits(tiny.llama(), bits)
        assert bench_module.weight_bytes(small) < most * whole
        error = (small(ids[None]) - expected).norm() / expected.norm()
        assert error < {16: 2e-2, 8: 0.2, 4: 0.8}[bits]
    with pytest.raises(ConfigError, match="bits=5: give 32, 16, 8, 4"):
        bench_module.in_bits(lm, 5)


def test_a_reading_is_as_large_as_requested(monkeypatch):
    reading = ReadBandwidth(3 << 20)
    assert reading.buffer.nbytes == 3 << 20
    assert ReadBandwidth(5).buffer.nbytes == bench_module.MIN_BYTES
    assert 1e6 < reading.measure(2) < 1e13
    monkeypatch.setattr(library, "available", lambda: False)
    assert len(ReadBandwidth(5).readers) == 1


def test_the_fastest_way_and_the_fastest_pass_count():
    now = [0.0]
    reading = ReadBandwidth(1 << 20, clock=lambda: now[0])

    def takes(*seconds):
        left = iter(seconds)

        def way():
            now[0] += next(left)

        return way

    # a call that warms up and one that is calibrated by, then two passes
    reading.readers = {"slow": takes(*[9.0] * 4), "fast": takes(5.0, 3.0, 4.0, 2.0)}
    assert reading.measure(2) == (1 << 20) / 2.0
    assert list(reading.readers) == ["fast"]


def test_resident_memory(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t     200 kB\nVmRSS:\t     100 kB\n")
    assert resident("now", status) == 102_400
    assert resident("peak", status) == 204_800
    assert resident("now", tmp_path / "absent") is None
    status.write_text("Name:\tx\n")
    assert resident("now", status) is None
    assert not reset_peak(tmp_path)
    assert reset_peak(status)
    assert status.read_text() == "5"


@native
def test_each_timed_step_is_after_the_whole_text():
    step = bench_module._Step(tiny.llama(), Dynamic(), torch.arange(9))
    for _ in range(3):
        step.run()
    assert step.state.length == 9


def test_percentiles_are_over_the_tokens_of_all_rounds(monkeypatch):
    texts = iter([[9.0], [1.0] * 10, [3.0] * 10])  # seconds of tokens; the first text warms up
    monkeypatch.setattr(
        Writer, "write", lambda *_: rates_of(8, [0.0, *accumulate([1.0, *next(texts)])])
    )
    told = bench(tiny.llama(), Dynamic(), prompt=8, new=4, rounds=2)
    assert (told.latency_p50, told.latency_p90, told.latency_p99) == (2.0, 3.0, 3.0)
    assert told.decode == pytest.approx((1 + 1 / 3) / 2)


def test_generate_is_timed():
    now = iter(range(100))
    lm, ids, tokens = tiny.llama(), torch.arange(12), []
    run = Writer(lm, clock=lambda: float(next(now))).write(ids, 5, tokens.extend)
    assert tokens == generate(lm, ids[None], max_new_tokens=5).new[0].tolist()
    assert (run.prompt, run.prompt_seconds, run.token_seconds) == (12, 1.0, (1.0,) * 4)
