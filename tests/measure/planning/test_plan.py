"""What a plan recommends, from what it knows of each layout."""

from __future__ import annotations

import functools
import math
import re
import sys
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from suffice.cli.plan import as_data, print_plan, sentences
from suffice.errors import ConfigError
from suffice.measure.planning import PlanOptions, device, plan, workload
from suffice.measure.planning.plan import (
    USABLE,
    LayoutEstimator,
    ParallelLayout,
    exchange_time,
    time_of,
)
from suffice.measure.planning.trace import Call, Recording

from .tiny import tiny

L4, H100 = device("l4"), device("h100")
TINY = tiny()


@pytest.fixture(scope="module", autouse=True)
def traces():
    """Trace each layout of a workload once for all tests."""
    module = sys.modules["suffice.measure.planning.plan"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trace", functools.cache(module.trace))
        yield


@pytest.fixture(scope="module")
def alone():
    return plan(TINY, L4, price=2.0, reached=0.5)


@pytest.fixture(scope="module")
def four():
    return LayoutEstimator(TINY, L4, 4, None, int(L4.memory * USABLE))


def within(size: float) -> int:
    """Return the memory of which so many bytes are usable."""
    return int(size / USABLE) + 2


def test_rows_that_fit_at_once_make_one_micro_batch(alone):
    best = alone.best.layout
    assert (best.accumulate, best.rows, best.checkpointing, best.shard) == (1, 12, False, False)
    assert [one.layout.checkpointing for one in alone.layouts] == [False, True]
    assert alone.fewest_gpus == 1
    assert alone.parts.peak == alone.best.memory <= alone.usable == int(24e9 * USABLE)
    spec = alone.workload.specs[0]
    assert alone.parts.state == 4 * 64 * spec.cost(64).state_numbers
    whole = vars(alone.parts)
    assert sum(v for n, v in whole.items() if n not in ("peak", "state")) >= whole["peak"]


def test_time_becomes_days_and_days_cost(alone):
    low, high = alone.seconds()
    assert low == 2 * alone.best.time.bounds[0]
    assert alone.days() == (low * 5000 / 86400, high * 5000 / 86400)
    assert alone.cost() == pytest.approx(tuple(2.0 * 24 * day for day in alone.days()))
    assert alone.tokens_per_second() == (12 * 64 / high, 12 * 64 / low)
    assert alone.flops == pytest.approx(alone.best.time.flops)


def test_less_memory_makes_smaller_micro_batches_then_recomputes(alone, four):
    needs = {
        (again, size): four.memory_of(
            ParallelLayout(shard=False, checkpointing=again, accumulate=size, rows=-(-12 // size)),
            1,
        )
        for again in (False, True)
        for size in (2, 12)
    }
    found = plan(TINY, L4, memory=within(needs[False, 2]), checkpointing=False).best
    assert (found.layout.accumulate, found.fits) == (2, True)
    assert found.memory == needs[False, 2]
    found = plan(TINY, L4, memory=within(needs[True, 12]))
    assert needs[True, 12] < needs[False, 12]
    assert found.best.layout == ParallelLayout(
        shard=False, checkpointing=True, accumulate=12, rows=1
    )
    assert found.best.fits
    assert not found.layouts[1].fits
    found = plan(TINY, L4, memory=within(needs[True, 12] - 4))
    assert not found.best.fits
    assert found.best.memory == needs[True, 12]


def test_sharded_weights_fit_where_copies_do_not(four):
    layout = ParallelLayout(shard=True, checkpointing=True, accumulate=3, rows=1)
    cut, copies = four.memory_of(layout), four.memory_of(replace(layout, shard=False))
    _, exact = four.exact(four.estimate(layout))
    assert cut == pytest.approx(exact.peak, rel=0.15)
    found = plan(TINY, L4, gpus=4, memory=within(max(cut, exact.peak)), checkpointing=True)
    assert cut < copies
    assert found.best.layout.shard
    assert found.best.fits
    assert found.parts.peak == found.best.memory
    assert found.parts.parameters < 0.3 * four.single_gpu(1, False).parameters
    assert found.fewest_gpus in (2, 4)
    assert "sharded" in printed(found)
    assert "replicated" in printed(found)
    small = plan(TINY, L4, memory=found.memory, checkpointing=True)
    assert not small.best.fits
    assert small.fewest_gpus in (2, 4)
    assert sentences(small)[0].endswith(f"usable; it would on {small.fewest_gpus} GPUs.")


def test_more_gpus_are_not_advised_where_they_would_not_help(alone):
    found = plan(TINY, L4, memory=10_000, shard=False, checkpointing=False)
    assert found.fewest_gpus is None
    assert not found.best.fits
    assert "more GPUs would not help; take larger ones" in sentences(found)[0]


def test_a_layout_that_needs_more_than_estimated_gives_way(monkeypatch, four):
    need = four.memory_of(ParallelLayout(shard=False, checkpointing=False, accumulate=2, rows=6), 1)
    honest = LayoutEstimator.memory_of
    monkeypatch.setattr(LayoutEstimator, "memory_of", lambda *args: int(0.9 * honest(*args)))
    best = plan(TINY, L4, memory=within(0.95 * need), checkpointing=False).best
    assert (best.layout.accumulate, best.fits) == (4, True)


def test_needs_are_lines_in_the_rows(four):
    layout = ParallelLayout(shard=False, checkpointing=False, accumulate=2, rows=6)
    estimate, traced = four.exact(four.estimate(layout))
    assert four.memory_of(layout, 1) == traced.peak
    assert four.memory_of(layout) == estimate.memory == traced.peak + traced.gradients


def test_sizes_end_with_one_row_each():
    assert PlanOptions(gpus=4).accumulations(TINY) == [1, 2, 3]
    assert PlanOptions().accumulations(TINY) == [1, 2, 4, 8, 12]
    assert PlanOptions(accumulate=6).accumulations(TINY) == [6]
    assert PlanOptions(gpus=2).accumulations(workload("digits_vit")) == [1]


def test_exchange_takes_the_slower_way(four):
    shard = ParallelLayout(shard=True, checkpointing=False, accumulate=1, rows=3)
    copies = ParallelLayout(shard=False, checkpointing=False, accumulate=1, rows=3)
    gradients = four.single_gpu(1, False).gradients
    assert four.time_of(copies).exchange == pytest.approx(2 * gradients * 3 / 4 / L4.link)
    assert four.time_of(shard).exchange > 0
    assert exchange_time([("allgather_base", 100)], 8, H100, None) == 100 * 7 / 8 / 450e9
    assert exchange_time([("reduce_scatter_base", 100)], 16, H100, None) == 100 * 15 / 16 / 50e9
    assert exchange_time([("allreduce", 100)], 16, H100, 1e9) == 2 * 100 * 15 / 16 / 1e9
    assert exchange_time([("broadcast", 100)], 2, H100, None) == 100 / 2 / 450e9
    assert exchange_time([("allreduce", 100)], 1, H100, None) == 0.0


def test_a_roofline_is_the_higher_of_two_times():
    def product(rows, dtype):
        shapes = (torch.Size([rows, 1024]), torch.Size([1024, 1024]))
        result = torch.Size([rows, 1024])
        return Call(torch.ops.aten.mm, shapes, (), result, dtype, 2 * (2 * rows + 1024) * 1024)

    large, small = product(4096, "bfloat16"), product(1, "bfloat16")
    recording = Recording()
    recording.calls[large] += 3
    recording.calls[small] += 1
    recording.traffic += [1000, 2000]
    found = time_of(recording, H100)
    assert found.flops == 2 * 1024**2 * (3 * 4096 + 1)
    assert found.products == pytest.approx(3 * 2 * 4096 * 1024**2 / 989.4e12)
    assert found.traffic == pytest.approx((small.traffic + 3000) / 3.35e12)
    exact = Recording()
    exact.calls[product(4096, "float32")] += 1
    assert time_of(exact, H100).products == pytest.approx(2 * 4096 * 1024**2 / 66.9e12)
    assert H100.rate("float64") == H100.rate("float32")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpus": 0}, "gpus=0; give an integer >= 1."),
        ({"accumulate": 0}, "accumulate=0; give an integer >= 1."),
        ({"price": 0.0}, "price=0.0; give a number above 0."),
        ({"network": -1.0}, "network=-1.0; give a number above 0."),
        ({"price": math.inf}, "price=inf; give a number above 0."),
        ({"reached": 1.5}, "reached=1.5; give a share above 0, up to 1."),
    ],
)
def test_illegal_numbers_are_refused(words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        PlanOptions(**words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpus": 13}, "some of 13 GPUs without one"),
        ({"gpus": 4, "accumulate": 4}, "of 4 GPUs without one in 4 micro-batches; give fewer"),
        ({"shard": True}, "shard: one GPU"),
        ({"gpus": 12}, "12 l4 .* beyond the 8 of a node"),
    ],
)
def test_gpus_that_do_not_fit_the_recipe_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        plan(TINY, L4, **words)


def test_settings_that_a_training_lacks_are_refused():
    with pytest.raises(ConfigError, match="shard, checkpointing, accumulate: the training of dig"):
        plan(workload("digits_vit"), L4, gpus=2, shard=True, checkpointing=True, accumulate=2)
    plan(workload("digits_vit"), L4, shard=False, checkpointing=False, accumulate=1)


def test_steps_come_from_the_data_or_from_the_recipe():
    one = workload("digits_vit")
    assert one.all_steps(None) is None
    assert one.all_steps(65) == 20 * 2
    assert workload("shakespeare_char").all_steps(None) == 5000
    with pytest.raises(ConfigError, match="examples=0"):
        one.all_steps(0)
    with pytest.raises(ConfigError, match="examples=9.*5,000 steps"):
        workload("shakespeare_char").all_steps(9)


def printed(found) -> str:
    console = Console(width=80, record=True, file=StringIO())
    print_plan(console, found)
    return console.export_text()


def test_data_hold_what_is_printed(alone):
    data = as_data(alone)
    assert data["bytes"]["peak"] == alone.parts.peak
    assert data["gpu"]["flops"]["bfloat16"] == 121e12
    assert [one["exact"] for one in data["layouts"]] == [True, False]
    assert data["tokens_per_step"] == 12 * 64
    assert data["cost"] == alone.cost()
