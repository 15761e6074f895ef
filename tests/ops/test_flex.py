"""FlexAttention's form of a pattern. Its kernels need CUDA; its masks and scores do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from suffice.errors import UnsupportedError
from suffice.ops import AttentionCall, MaskInputs, flex
from suffice.ops.dispatch import OPS, choose, explain
from suffice.ops.op import NO_PARTS
from suffice.patterns import Block, Causal, Full, Global, PerHead, Random, Strided, Window
from suffice.positions import Alibi, NoPosition
from suffice.testing import assert_close, normal

PATTERNS = [
    Window(40) & Causal(),
    (Window(16) | Strided(16)) & Causal(),
    Block(16, Window(2) | Random(2, length=40) | Global(1)),
    PerHead((Window(9), Full(), Window(9), Global(2))),
    Global(1) & Window(3),
]


def problem_of(pattern, queries, keys, **more) -> AttentionCall:
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "value_dim": 16, "scale": 0.25}
    return AttentionCall(queries=queries, keys=keys, pattern=pattern, **sizes, **more)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_equals_the_reference(pattern):
    queries, keys = 40, 150
    position = (Alibi(), NoPosition())[PATTERNS.index(pattern) % 2]
    problem = problem_of(pattern, queries, keys, position=position)
    q = normal(2, 4, queries, 16, seed=1, dtype=torch.float32)
    k, v = (normal(2, 2, keys, 16, seed=s, dtype=torch.float32) for s in (2, 3))
    got = flex.attend(q, k, v, MaskInputs(), problem, NO_PARTS)
    assert_close(got, OPS["reference"].run(q, k, v, MaskInputs(), problem, NO_PARTS), n=keys)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_the_blocks_are_those_of_the_layout(pattern):
    mask = flex.block_mask(pattern, 4, 400, 500, torch.device("cpu"))
    assert isinstance(mask, BlockMask)
    by_head = pattern.of_heads(4) if pattern.heads else (pattern,)
    want = torch.stack([p.layout(400, 500, flex.SIDE).touched > 0 for p in by_head])
    assert torch.equal(mask.to_dense()[0].bool(), want)
    assert flex.block_mask(pattern, 4, 400, 500, torch.device("cpu")) is mask


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
def test_many_masks_are_all_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    flex._kernel.cache_clear()
    kernel, q = flex._kernel("cuda"), normal(1, 1, 130, 16, seed=1)
    for size in range(4, 14):  # by itself torch gives up after eight
        mask = flex.block_mask(Window(size), 1, 130, 130, q.device)
        assert kernel(q, q, q, block_mask=mask).isfinite().all()
    flex._kernel.cache_clear()


def test_it_is_chosen_on_cuda_for_sparse_patterns():
    problem = problem_of(Window(40) & Causal(), 4096, 4096, device="cuda")
    assert choose(problem).name == "flex"
    assert choose(replace(problem, pattern=Causal())).name == "fused"
    assert choose(replace(problem, plain=False)).name == "fused"
    assert "not blocked: it is built on the flash kernel of the CPU" in explain(problem)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu"}, "elsewhere it computes every pair"),
        ({"plain": False}, "rebuilt for the data of each batch"),
        ({"head_dim": 8, "value_dim": 8}, "narrower than 16 features"),
        ({"value_dim": 32}, "values are 32 wide and keys 16"),
        ({"dropping": True}, "dropping weights"),
    ],
)
def test_refusals(change, reason):
    problem = replace(problem_of(Window(3), 9, 9, device="cuda"), **change)
    with pytest.raises(UnsupportedError, match=reason):
        choose(problem, "flex")
