"""What a training needs, against torch's trackers of memory and the library's counts of FLOPs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from suffice.choose.fits import table
from suffice.choose.fits.calculator import count
from suffice.choose.fits.training import TrainingRun, step_flops, training_bytes
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.models import configuration
from suffice.train import distributed, sharded
from suffice.train.language import Batch, gradient_checkpointing, summed_loss

CASES = [
    ("nanogpt_char_cpu", None, TrainingRun(length=64, batch=6, bits=32)),
    ("nanogpt_char_cpu", "efficient", TrainingRun(length=64, batch=2, bits=32, accumulate=2)),
    ("nanogpt_char_cpu", "efficient", TrainingRun(length=200, batch=12, checkpointing=True)),
    ("llama_15m", "gqa", TrainingRun(length=200, batch=3)),
    ("llama_15m", None, TrainingRun(length=100, batch=3, bits=32, checkpointing=True, gpus=4)),
    ("llama_15m", None, TrainingRun(length=250, batch=2, accumulate=2, gpus=8)),
    ("llama_110m", "efficient", TrainingRun(length=90, batch=1)),
]


def sizes_of(config, specs):
    [spec] = {*specs}
    return table("calculator")["defaults"] | {
        "d_model": config.d_model,
        "layers": config.depth,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.kv_heads if spec.kv_heads < spec.num_heads else 0,
        "projections": type(spec.encoder).__name__,
        "rotary": config.positions == "none",
        "vocabulary": config.vocabulary_size,
        "mlp_width": config.mlp_width,
        "gated": config.norm == "rms",
        "positions": config.length if config.positions == "learned" else 0,
        "tied": config.tied,
    }


def tracked(config, specs, run):
    """Return what torch's tracker sees at the peak of two steps, bytes by kind."""
    model = config.build(specs)
    for module in model.modules():
        if isinstance(module, Attention):
            module.impl = "fused"
    tokens = torch.zeros(run.batch, run.length, dtype=torch.int64)
    if run.gpus > 1:
        sharded.cut(model, init_device_mesh("cpu", (run.gpus,)))
        adamw = torch.optim.AdamW(model.parameters())
        tracker = FSDPMemTracker(model, adamw)
        tracker.track_inputs((tokens,))
    else:
        adamw = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, adamw)
    dtype = {16: "bfloat16", 32: "float32"}[run.bits]
    with tracker:
        for number in range(2 * run.accumulate):
            last = (number + 1) % run.accumulate == 0
            waits = distributed.no_sync(model) if run.gpus > 1 and not last else nullcontext()
            with gradient_checkpointing(model, run.checkpointing), waits:
                summed_loss(model, Batch(tokens, tokens.clone()), dtype=dtype).backward()
            tracker.reset_mod_stats()
            if last:
                adamw.step()
                adamw.zero_grad()
    [device] = tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "name", kind): size for kind, size in device.items()}


@pytest.fixture
def group(request):
    run = request.getfixturevalue("run")
    if run.gpus > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=run.gpus)
    yield
    if run.gpus > 1:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("name", "mechanism", "run"), CASES)
def test_the_peak_is_what_the_tracker_of_torch_sees(name, mechanism, run):
    config, specs = configuration(name, mechanism, length=run.length)
    found, seen = training_bytes(sizes_of(config, specs), run), tracked(config, specs, run)
    whole = "SHARDED_PARAM" if run.gpus > 1 else "PARAM"
    assert found["parameters"] == seen[whole]
    assert found["optimiser"] == pytest.approx(seen["OPT"], rel=1e-4)
    assert found["total"] == pytest.approx(seen["Total"], rel=0.15)
    if run.accumulate > 1:
        assert found["gradients"] == pytest.approx(seen.get("UNSHARDED_GRAD", seen.get("GRAD")))


@pytest.mark.parametrize(("name", "mechanism", "run"), CASES)
def test_flops_are_those_of_the_layers(name, mechanism, run):
    config, specs = configuration(name, mechanism, length=run.length)
    sizes = sizes_of(config, specs)
    weights = count(sizes, 1).weights
    layers = sum(spec.cost(run.length).visible_flops for spec in specs)
    maps = 2 * run.length * (weights["mlp"] + config.vocabulary_size * config.d_model)
    rows = run.batch * run.accumulate * run.gpus
    assert step_flops(sizes, run) == 3 * rows * (layers + maps)


def test_layers_without_softmax_are_refused():
    sizes = table("calculator")["defaults"] | {"kernel": "Elu"}
    with pytest.raises(ConfigError, match="softmax"):
        training_bytes(sizes, TrainingRun(length=8))
