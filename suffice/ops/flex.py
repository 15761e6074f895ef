"""Sparse softmax attention on CUDA through torch's FlexAttention, from the same block layout.

The blocks a pattern touches become a BlockMask, the pattern's own predicate decides inside blocks
that are touched in part, and biases of positions are added to the scores. Masks and the compiled
kernel are made once and kept.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suffice.ops import fused
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import Op, Parts, refuses_transforms
from suffice.patterns import Pattern
from suffice.positions import Position

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SIDE = 128  # positions of a block, what the kernels of FlexAttention are built for
LEAST_WIDTH = 16  # features of a head
VARIANTS = 1024  # compiled kernels; what needs more raises


def attend(
    q: Tensor, k: Tensor, v: Tensor, _masks: MaskInputs, call: AttentionCall, _parts: Parts
) -> Tensor:
    biased = call.position.biases
    offset = call.keys - call.queries
    return _kernel("eager" if call.compiling else q.device.type)(
        q,
        k,
        v,
        score_mod=_score(call.position, call.num_heads, offset) if biased else None,
        block_mask=block_mask(call.pattern, call.num_heads, call.queries, call.keys, q.device),
        scale=call.scale,
        enable_gqa=call.group > 1,
    )


def refuses(call: AttentionCall) -> list[str]:
    """Refuse other devices, data that restrict the pattern, narrow heads and dropout."""
    reasons = fused.refuses(call) + refuses_transforms(call)
    if call.device != "cuda":
        reasons.append("FlexAttention is fast on CUDA only: elsewhere it computes every pair")
    if not call.plain:
        reasons.append("its block mask would have to be rebuilt for the data of each batch")
    if call.value_dim != call.head_dim:
        reasons.append(f"values are {call.value_dim} wide and keys {call.head_dim}")
    if call.head_dim < LEAST_WIDTH:
        reasons.append(f"heads are narrower than {LEAST_WIDTH} features")
    return reasons


@lru_cache(maxsize=32)
def block_mask(
    pattern: Pattern, num_heads: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """Return FlexAttention's form of a pattern, the queries last among the keys."""
    from torch.nn.attention.flex_attention import BlockMask

    by_head = pattern.of_heads(num_heads) if pattern.heads else (pattern,)
    touched = torch.stack([head.layout(queries, keys, SIDE).touched for head in by_head])
    return BlockMask.from_kv_blocks(
        *_listed(touched == 1, device),
        *_listed(touched == 2, device),
        BLOCK_SIZE=SIDE,
        mask_mod=_predicate(by_head, keys - queries),
        seq_lengths=(queries, keys),
    )


def _listed(blocks: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each row of blocks has, and which: [1, H, rows(, columns)]."""
    count = blocks.sum(-1, dtype=torch.int32)
    which = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    return count[None].to(device), which[None].contiguous().to(device)


def _predicate(by_head: tuple[Pattern, ...], offset: int) -> Callable[..., Tensor]:
    def allowed(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del batch
        if len(by_head) == 1:
            return by_head[0].allowed(q + offset, k)
        masks = [(head == i) & part.allowed(q + offset, k) for i, part in enumerate(by_head)]
        return torch.stack(masks).any(0)

    return allowed


@lru_cache(maxsize=32)
def _score(position: Position, num_heads: int, offset: int) -> Callable[..., Tensor]:
    def biased(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del batch
        added = position.bias(num_heads, (q + offset)[..., None, None], k[..., None, None])
        return score + added[..., 0, 0][head].to(score.dtype)

    return biased


@lru_cache(maxsize=3)
def _kernel(device: str) -> Callable[..., Tensor]:
    """Return FlexAttention, compiled for CUDA: elsewhere, and within a graph, it is as it is.

    It is compiled for each mask, shape and data type. After eight of them torch would run it
    uncompiled, with every pair in memory, which took 50 to 100 times as long on an H100.
    """
    from torch.nn.attention.flex_attention import flex_attention

    if device != "cuda":
        return flex_attention
    compiled = torch.compile(flex_attention, dynamic=False)
    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), VARIANTS)

    def call(*tensors: Tensor, **options: object) -> Tensor:
        with torch._dynamo.config.patch(**limits, fail_on_recompile_limit_hit=True):
            return compiled(*tensors, **options)

    return call


FLEX = Op("flex", "FlexAttention over the blocks the pattern touches", attend, refuses)
