"""Memory, FLOPs and days of training a decoder with AdamW, in closed form.

Weights, gradients and moments are float32, as `suffice train` keeps them; 16 bits are products in
bfloat16 under autocast, whose copies of the weights live until the backward pass. With several GPUs
they are sharded (FSDP2): a block is gathered while it runs, what is outside the blocks for a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from suffice.choose.fits.calculator import PRODUCTS, kinds_of, layer_of, weights_of
from suffice.choose.fits.configs import Sizes
from suffice.errors import ConfigError

FLOAT, HALF, DAY = 4, 16, 86_400


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """How a decoder is trained: each GPU computes `batch` rows of `length` tokens at once."""

    length: int = 4096
    batch: int = 1
    bits: int = HALF  # of products: 16 or 32
    gpus: Annotated[int, Option(help="With --train: GPUs.")] = 1
    accumulate: Annotated[int, Option(help="With --train: micro-batches of a step.")] = 1
    checkpointing: Annotated[
        bool, Option("--checkpointing", help="With --train: compute blocks again going backward.")
    ] = False
    tokens: Annotated[
        float | None, Option(help="With --train: tokens to train on, such as 300e9, for the days.")
    ] = None
    tflops: Annotated[
        float, Option(help="With --train: peak TFLOP/s of a GPU; the default is an H100's.")
    ] = 989.4
    utilisation: Annotated[
        float, Option(help="With --train: share of the peak that is reached.")
    ] = 0.4

    def __post_init__(self) -> None:
        if (self.tokens is not None and self.tokens <= 0) or self.tflops <= 0:
            raise ConfigError(f"tokens={self.tokens}, tflops={self.tflops}: give numbers above 0.")
        if not 0 < self.utilisation <= 1:
            raise ConfigError(f"utilisation={self.utilisation}: give above 0 and at most 1.")
        if self.bits not in (2 * HALF, HALF):
            raise ConfigError(f"bits={self.bits}: products of a training have 16 bits or 32.")

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.accumulate * self.gpus * self.length


def training_bytes(sizes: Sizes, run: TrainingRun) -> dict[str, int]:
    """Return the bytes of each part on one GPU; "total" is the peak of a step."""
    weights, ranks = weights_of(sizes), run.gpus
    everything = FLOAT * weights["total"]
    blocks = FLOAT * (weights["attention"] + weights["mlp"])
    whole = run.accumulate > 1 or ranks == 1  # gradients wait as they are, and are reduced at last
    gathered = everything - blocks + 2 * blocks // sizes["layers"] if ranks > 1 else 0
    saved, working = _activations(sizes, run)
    table = FLOAT * sizes["vocabulary"] * sizes["d_model"]  # gradient of the embedding, one more
    parts = {
        "parameters": -(-everything // ranks),
        "gradients": everything if whole else -(-everything // ranks),
        "optimiser": 2 * -(-everything // ranks),
        "gathered": gathered,
        "activations": saved + working,
    }
    first = parts["activations"] + (run.accumulate > 1) * parts["gradients"]
    last = parts["gradients"] + (1 + sizes["tied"]) * table  # in one pass, there are none before
    state = parts["parameters"] + parts["optimiser"] + gathered
    return parts | {"total": state + max(first, last)}


def _activations(sizes: Sizes, run: TrainingRun) -> tuple[int, int]:
    """Return the bytes that wait for the backward pass, and the most that one piece adds."""
    s, layer, item = sizes, layer_of(sizes, full=False), run.bits // 8
    if s["recurrent_numbers"] or s["mixing_size"] or s["kernel"] != "Softmax":
        raise ConfigError("activations of layers without softmax are not counted; omit --train.")
    d_model, queries, kv = s["d_model"], layer.heads * layer.width, layer.kv_heads * layer.width
    maps = PRODUCTS.get(s["projections"], 0)
    if not maps:  # what is made of the latents
        kv, maps = queries, 3
    heads = 2 * queries + (maps - 1 + (s["rotary"] and maps == 1)) * kv + 2 * s["gate"] * queries
    readers = (maps if item < FLOAT else 1) + (1 + s["gated"] if item < FLOAT else 1)
    reading = (s["active_experts"] + s["shared_experts"]) * s["expert_width"]
    width = max(s["mlp_width"], reading)
    hidden = (4 if s["gated"] else 2) * width
    token = item * (heads + readers * d_model + hidden)
    token += FLOAT * (s["norms"] * (d_model + 2) + layer.heads + s["qk_norm"] * (queries + kv))
    tokens = run.batch * run.length
    block = tokens * token + _copies(s, item)
    backward = tokens * item * (3 * width if s["gated"] else width + 2 * d_model)
    loss = 3 * FLOAT * tokens * s["vocabulary"]
    ends = FLOAT * tokens * 3 * d_model + item % FLOAT * s["vocabulary"] * d_model
    if run.checkpointing:
        return ends + s["layers"] * FLOAT * tokens * d_model, max(loss, block + backward)
    return ends + s["layers"] * block, max(loss, backward)


def _copies(sizes: Sizes, item: int) -> int:
    weights = weights_of(sizes)
    return item * (weights["attention"] + weights["mlp"]) // sizes["layers"] if item < FLOAT else 0


def step_flops(sizes: Sizes, run: TrainingRun) -> int:
    """Return the FLOPs of a step: matrix products, twice as many backward, visible pairs alone.

    Blocks that are computed again are not counted: this is what a utilisation is of.
    """
    s, length, pairs = sizes, run.length, 0
    for kind in kinds_of(s):
        layer, seen = layer_of(s, kind.full), length
        if s["window"] and not kind.full:
            seen = min(length, s["window"])
        visible = seen * (seen + 1) // 2 + (length - seen) * seen
        pairs += kind.count * visible * 4 * layer.heads * layer.width
    weights = weights_of(s)
    products = weights["active"] - weights["norms"] - s["positions"] * s["d_model"]
    products -= 0 if s["tied"] or not s["active_embedding"] else s["vocabulary"] * s["d_model"]
    rows = run.batch * run.accumulate * run.gpus
    return 3 * rows * (2 * length * products + pairs)


def training_facts(sizes: Sizes, run: TrainingRun) -> dict[str, Any]:
    """Return bytes, FLOPs and days, plain data; no days without tokens."""
    flops, days = step_flops(sizes, run), None
    if run.tokens is not None:
        rate = run.gpus * run.tflops * 1e12 * run.utilisation
        days = flops / run.tokens_per_step * run.tokens / rate / DAY
    return {
        "bytes": training_bytes(sizes, run),
        "tokens_per_step": run.tokens_per_step,
        "flops_per_step": flops,
        "days": days,
    }
