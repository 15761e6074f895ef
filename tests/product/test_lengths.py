"""Every length is served: all of 1 to 67, and those around the blocks of the fast ops."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from suffice import Attention, AttentionSpec, attend
from suffice.ops import OPS, AttentionCall
from suffice.patterns import Block, Causal, Dilated, Global, Pattern, Random, Strided, Window
from suffice.testing import assert_close, drawn, normal
from tests.acceptance.mechanisms import PRESET_KINDS, spec_of

LONGEST = 67
EDGES = {1, 2, 3, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, LONGEST}
D_MODEL, NUM_HEADS = 8, 4
BOUNDARIES = (63, 64, 65, 128, 129, 192, 255, 257)
QUERIES = (1, 64)
IN_BLOCKS = ("fused", "blocked")  # ops that cut sequences into blocks


def built(kind: str, length: int) -> AttentionSpec:
    name, causal = PRESET_KINDS[kind]
    return spec_of(name, causal=causal, d_model=D_MODEL, num_heads=NUM_HEADS, length=length)


def accepting(problem: AttentionCall) -> list[str]:
    if problem.kernel.lane == "recurrence":
        return ["recurrence"]
    return [n for n, op in OPS.items() if n != "reference" and not op.refuses(problem)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("number", "kind"), list(enumerate(PRESET_KINDS)))
@torch.inference_mode()
def test_every_length_equals_the_reference(number, kind):
    """The presets share out the lengths between the edges of blocks, each takes an eighth."""
    spec = built(kind, LONGEST)
    layers = {}
    for length in sorted(EDGES.union(range(1 + number % 8, LONGEST, 8))):
        x = normal(1, length, D_MODEL, seed=length)
        problem = AttentionCall.of(spec, length, spec.mixing.reads(length), dtype=torch.float64)
        for op in ["reference", *accepting(problem)]:
            if op not in layers:
                layers[op] = drawn(Attention(spec, impl=op, dtype=torch.float64), seed=5)
            out = layers[op](x)
            if op == "reference":
                want = out
            assert_close(out, want)
    assert len(layers) > 1


def presets_with_blocks() -> dict[str, Pattern]:
    """The sparse patterns of the presets, sized for a thousand tokens."""
    patterns = {kind: built(kind, 1024).pattern for kind in PRESET_KINDS}
    return {kind: pattern for kind, pattern in patterns.items() if not pattern.dense}


SPARSE = {
    **presets_with_blocks(),
    "window-64": Window(64) & Causal(),
    "window-65": Window(65),
    "dilated": Dilated(17, 5) & Causal(),
    "strided-64": (Window(64) | Strided(64)) & Causal(),
    "random": Random(9, seed=3) | Global(3),
    "blocks": Block(50, Window(2) | Global(1)),
}


@pytest.mark.parametrize("pattern", SPARSE.values(), ids=list(SPARSE))
def test_around_block_boundaries(pattern):
    heads = pattern.heads or 2
    compared = set()
    for keys, asked in product(BOUNDARIES, (*QUERIES, None)):
        queries = keys if asked is None else asked
        if queries > keys or keys > (pattern.max_length or keys):
            continue
        q, k, v = (normal(1, heads, n, 4, seed=keys) for n in (queries, keys, keys))
        problem = AttentionCall(
            queries=queries, keys=keys, num_heads=heads, num_kv_heads=heads,
            head_dim=4, value_dim=4, scale=0.5, pattern=pattern,
        )  # fmt: skip
        want = attend(q, k, v, pattern=pattern, impl="reference")
        for op in set(accepting(problem)).intersection(IN_BLOCKS):
            assert_close(attend(q, k, v, pattern=pattern, impl=op), want)
            compared.add(op)
    assert compared == set(IN_BLOCKS)


@pytest.mark.parametrize("keys", [65, 257])
@pytest.mark.parametrize("pattern", SPARSE.values(), ids=list(SPARSE))
def test_gradients_around_block_boundaries(pattern, keys):
    heads = pattern.heads or 2
    inputs = [normal(1, heads, n, 4, seed=keys + n).requires_grad_() for n in (keys - 2, keys)]
    slope = normal(1, heads, keys - 2, 4, seed=1)

    def gradients(op: str) -> tuple[torch.Tensor, ...]:
        q, k = inputs
        out = attend(q, k, k.flip(2), pattern=pattern, impl=op)
        return torch.autograd.grad(out, inputs, slope)

    want = gradients("reference")
    for op in ("auto", "blocked"):
        for a, b in zip(gradients(op), want, strict=True):
            assert_close(a, b)
