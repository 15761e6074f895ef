"""Traces without numbers against steps with numbers on this CPU."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from suffice.errors import StateError
from suffice.layers import Attention
from suffice.measure.planning import trace, workload
from suffice.measure.planning.trace import Recorder, flops_of
from suffice.ops import register_flops
from suffice.recipes import LM_RECIPES, RECIPES

from .real import weigh
from .tiny import tiny

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("translation_es",)  # others of their kinds are weighed above
REAL = [
    ("digits_vit", "super_attention", "paper", 64),
    ("imdb", "optimised", "paper", 16),
    ("translation_es", None, "small", 8),
    ("mqar", "linear", "paper", 16),
    ("shakespeare_char", "sliding_window", "paper", 4),
    ("stdlib_bpe", "efficient", "paper", 2),
]


@pytest.mark.parametrize(("name", "mechanism", "scale", "rows"), REAL)
def test_a_trace_weighs_what_a_step_weighs(name, mechanism, scale, rows):
    one = workload(name, mechanism=mechanism, scale=scale)
    model = one.build()
    if name == "stdlib_bpe":  # a plan masks documents, which this CPU would compute one by one
        for module in model.modules():
            if isinstance(module, Attention):
                module.impl = "fused"
    found, real = trace(one, rows), weigh(one, model, rows)
    assert found.parameters == real.parameters
    assert found.gradients == real.gradients
    assert found.optimiser == real.optimiser
    assert found.activations == pytest.approx(real.activations, rel=0.15)
    there = found.parameters + found.optimiser
    assert found.peak - there == pytest.approx(real.peak, rel=0.15)


def test_checkpointing_keeps_less_and_computes_one_forward_more():
    one = workload("shakespeare_char")
    kept, again = trace(one, 8), trace(one, 8, checkpointing=True)
    real = weigh(one, one.build(), 8, checkpointing=True)
    there = again.parameters + again.optimiser
    assert again.peak - there == pytest.approx(real.peak, rel=0.15)
    assert again.activations < 0.5 * kept.activations
    assert 1.2 < flops(again) / flops(kept) < 4 / 3


def flops(found) -> int:
    return sum(times * flops_of(call) for call, times in found.last.calls.items())


@pytest.mark.parametrize("one", [tiny(), workload("digits_vit")], ids=lambda one: one.name)
def test_products_are_those_of_a_step(one):
    traced = flops(trace(one, 3))
    model = one.build()
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.impl = "fused"
    register_flops()
    with FlopCounterMode(display=False) as counter:
        one.loss(model, 3).backward()
    assert traced == counter.get_total_flops()


def test_attention_goes_as_on_a_gpu():
    def products(mechanism):
        calls = trace(workload("shakespeare_char", mechanism=mechanism), 1).last.calls
        return {call.packet for call in calls}

    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert fused in products("standard")
    assert torch.ops.suffice.blocked in products("sliding_window")


def test_what_is_alive_is_counted_and_what_changes_its_size():
    x = torch.zeros(100)
    recorder = Recorder([x, x[:3]])
    with recorder.recording():
        assert recorder.live == 400
        y = x + 1
        assert recorder.live == 800
        del y
        assert recorder.live == 400
        x.untyped_storage().resize_(0)
        assert recorder.live == 0
        x.untyped_storage().resize_(2000)
    assert (recorder.live, recorder.peak) == (2000, 2000)
    x.untyped_storage().resize_(0)
    assert recorder.live == 2000
    assert recorder.take().traffic == [800]


def test_views_move_no_bytes():
    x = torch.zeros(100)
    recorder = Recorder([x])
    with recorder.recording():
        x.view(10, 10)
        assert not recorder.take().traffic
        x.add_(1.0)  # reads and writes
    assert recorder.take().traffic == [800]


def test_gradients_that_wait_are_there_from_the_start():
    one = tiny()
    first, later = trace(one, 1), trace(one, 1, accumulate=2)
    assert first.peak < later.peak <= first.peak + first.gradients
    assert later.state == later.parameters + later.gradients + later.optimiser


@pytest.mark.parametrize("ranks", [2, 40])
def test_ranks_hold_their_part(ranks):
    one = tiny()
    alone, cut = trace(one, 1), trace(one, 1, ranks=ranks)
    shapes = [p.shape for p in one.build().parameters()]
    first = sum(-(-shape[0] // ranks) * shape[1:].numel() for shape in shapes)
    assert cut.parameters == cut.gradients == 4 * first
    assert cut.optimiser == 8 * first + 4 * len(shapes)
    assert cut.activations >= alone.activations
    gathered = sum(size for kind, size in cut.last.exchanged if "gather" in kind)
    assert alone.parameters < gathered < 2.1 * max(alone.parameters, 4 * first * ranks)


SCRIPT = """
    import json, sys
    from pathlib import Path
    import torch
    from suffice.measure.planning.trace import Recorder
    from suffice.train import processes, sharded
    from tests.measure.planning.real import weigh
    from tests.measure.planning.tiny import tiny

    one = tiny()
    with processes("cpu") as both:
        found = {}
        for name in ("sharded", "replicated"):
            model = one.build()
            if name == "sharded":
                model = sharded.shard(model, both, torch.device("cpu"))
            else:
                model = both.wrap(model, torch.device("cpu"))
            found[name] = vars(weigh(one, model, 4))
            recorder = Recorder([])
            with recorder.recording():
                one.loss(model, 4).backward()
            found[name]["exchanged"] = recorder.take().exchanged
        if both.is_main:
            Path(sys.argv[1]).write_text(json.dumps(found))
        del model
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two gloo processes needed."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "work.py").write_text(textwrap.dedent(SCRIPT))
    environment = {n: v for n, v in os.environ.items() if not n.startswith("COV")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(folder / "work.py"), str(folder / "found")],
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found").read_text())


@pytest.mark.slow
def test_two_processes_with_parts_need_what_the_trace_says(both):
    found, real = trace(tiny(), 4, ranks=2), both["sharded"]
    assert found.parameters == real["parameters"]
    assert found.gradients == real["gradients"]
    assert found.optimiser == real["optimiser"]
    assert [list(one) for one in found.last.exchanged] == real["exchanged"]
    there = found.parameters + found.optimiser
    assert found.peak - there == pytest.approx(real["peak"], rel=0.15)


@pytest.mark.slow
def test_two_replicas_need_what_one_process_does_and_buckets(both):
    found, real = trace(tiny(), 4), both["replicated"]
    assert found.parameters == real["parameters"]
    assert found.optimiser == real["optimiser"]
    there = found.parameters + found.optimiser
    assert found.peak + found.gradients - there == pytest.approx(real["peak"], rel=0.15)


def fakes() -> int:
    """Count the tensors without content that are alive, of other tests too."""
    gc.collect()
    return sum(type(o) is FakeTensor for o in gc.get_objects())


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in (*RECIPES, *LM_RECIPES)
    ],
)
def test_every_recipe_is_traced_and_leaves_nothing(name):
    one = workload(name)
    before = fakes()
    assert trace(one, 1).parameter_count > 0
    assert fakes() <= before
    assert not torch.compiler.is_compiling()


def test_a_process_of_a_group_cannot_trace_another():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with pytest.raises(StateError, match="4 processes"):
            trace(tiny(), 1, ranks=2)
    finally:
        dist.destroy_process_group()
