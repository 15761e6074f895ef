# type: ignore - the bodies of kernels are Triton's language
"""Triton kernels for CUDA where FlexAttention has none: called by name, chosen by no plan.

`decode`: few queries over heads that share keys, the keys split among programs and merged by their
log-sum-exp; one tensor for keys and values is read once. `linear_attention`: chunked causal sums of
features, forward and backward.

Unmeasured: checked in Triton's interpreter on a CPU (TRITON_INTERPRET=1), on no GPU so far.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E widths, F features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import UnsupportedError
from suffice.ops.op import dense_rows
from suffice.ops.reference import divided

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 64  # keys of a step of decode, positions of a chunk of sums
COLUMNS = 32  # of values, for a program of sums
PROGRAMS = 512  # of decode, to which keys are split; a GPU has some hundred multiprocessors
LEAST = 16  # rows and columns of a product of Triton's
MOST_ROWS, WIDEST = 64, 256  # queries that share keys, features of a head


# Triton's interpreter gives wrong products of bfloat16 (3.9): there they are float32's
INTERPRETED = triton is not None and triton.knobs.runtime.interpret


def _jit(kernel):
    return kernel if triton is None else triton.jit(kernel)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    valid: Tensor | None = None,
    causal: bool = False,
    splits: int | None = None,
) -> Tensor:
    """Return softmax attention of a few queries, which stand last among the keys.

    If `v` is `k`, each key is read once. A query that sees no key gets 0. There are no gradients.

    Args:
        q: [B, H, T, D] in float32, bfloat16 or float16.
        k: [B, G, S, D]; G divides H.
        v: [B, G, S, D].
        scale: factor of the products.
        valid: bool [B, S], False = padding, which is not read; None = all are real.
        causal: True if a query sees its own and earlier positions only.
        splits: programs for the keys of one head; None = enough to fill a GPU.

    Shapes:
        -> [B, H, T, D]

    Raises:
        UnsupportedError: without Triton, for wider heads, more queries, other dtypes.
    """
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    rows = heads // groups * queries
    _refuse(q, k, v, width)
    if rows > MOST_ROWS or v.shape != k.shape:
        raise UnsupportedError(
            f"{rows} queries share keys {list(k.shape)} with values {list(v.shape)}: decode takes "
            f"up to {MOST_ROWS}, and values as wide as keys."
        )
    one_tensor = v is k
    k = dense_rows(k)
    v = k if one_tensor else dense_rows(v)
    if splits is None:
        splits = max(PROGRAMS // (batch * groups), 1)
    per_split = triton.cdiv(triton.cdiv(keys, splits), BLOCK) * BLOCK
    splits = triton.cdiv(keys, per_split)
    parts = q.new_empty(batch * groups, splits, rows, width, dtype=torch.float32)
    lse = q.new_empty(batch * groups, splits, rows, dtype=torch.float32)
    sizes = {"WIDTH": max(triton.next_power_of_2(width), LEAST)}
    _decode_split[batch * groups, splits](
        q.contiguous(), k, v, k if valid is None else valid.contiguous(), parts, lse,
        scale, rows, queries, keys, per_split, width, groups,
        *k.stride()[:3], *v.stride()[:3],
        ONE_TENSOR=one_tensor, CAUSAL=causal, MASKED=valid is not None, UPCAST=INTERPRETED,
        ROWS=max(triton.next_power_of_2(rows), LEAST), BLOCK=BLOCK, **sizes,
    )  # fmt: skip
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _merge[batch * groups, rows](
        parts, lse, out, rows, splits, width, SPLITS=triton.next_power_of_2(splits), **sizes
    )
    return out


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Return causal attention with weights phi(q) . phi(k) over their sum, with gradients.

    Args:
        q: features of queries [B, H, T, F], none negative.
        k: features of keys [B, G, T, F]; G divides H.
        v: values [B, G, T, E].
        valid: bool [B, T], False = a masked key; None = all are real.

    Shapes:
        -> [B, H, T, E] in the dtype of v

    Cost: O(T F (E + C)) for chunks of C positions, and a state F (E + 1) for each chunk; heads that
    share keys each form these states.

    Raises:
        UnsupportedError: without Triton, for more features, other dtypes.
    """
    _refuse(q, k, v, max(q.shape[3], v.shape[3] + 1))
    ones = F.pad(v.float(), (0, 1), value=1.0)
    k = k.float()
    if valid is not None:
        k = k.masked_fill(~valid[:, None, :, None], 0.0)
        ones = ones.masked_fill(~valid[:, None, :, None], 0.0)
    k, ones = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, ones))
    return divided(_CausalSums.apply(q.float(), k, ones), 0.0, v.shape[3])[0].to(v.dtype)


def _refuse(q: Tensor, k: Tensor, v: Tensor, width: int) -> None:
    if triton is None:
        raise UnsupportedError("Triton is not installed: pip install triton.")
    if any(x.dtype not in DTYPES for x in (q, k, v)) or width > WIDEST:
        raise UnsupportedError(
            f"heads {width} wide of {q.dtype}, {k.dtype} and {v.dtype}: these kernels take up to "
            f"{WIDEST} features in float32, bfloat16 or float16."
        )


class _CausalSums(torch.autograd.Function):
    """out_t = sum over s <= t of (q_t . k_s) v_s; its gradients are such sums themselves."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return causal_sums(q, k, v)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        back_q, back_k, back_v, back = (x.flip(2) for x in (q, k, v, gradient))
        of_k = causal_sums(back_v, back, back_q).flip(2)
        of_v = causal_sums(back_k, back_q, back).flip(2)
        return causal_sums(gradient, v, k), of_k, of_v


def causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return sums over s <= t of (q_t . k_s) v_s for q, k [B, H, T, F] and v [B, H, T, E]."""
    batch, heads, length, features = q.shape
    width, chunks = v.shape[3], triton.cdiv(length, BLOCK)
    q, k, v = (x.contiguous() for x in (q, k, v))
    states = q.new_empty(batch * heads, chunks, features, width)
    out = torch.empty_like(v)
    blocks = triton.cdiv(width, COLUMNS)
    sizes = {
        "CHUNK": BLOCK,
        "COLUMNS": COLUMNS,
        "FEATURES": max(triton.next_power_of_2(features), LEAST),
    }
    _states[batch * heads, blocks](k, v, states, length, features, width, chunks, **sizes)
    _sums[batch * heads, blocks, chunks](
        q, k, v, states, out, length, features, width, chunks, **sizes
    )
    return out


# ruff: noqa: N803 - constants of a compilation are upper case


@_jit
def _decode_split(
    q, k, v, valid, parts, lse, scale, rows, queries, keys, per_split, width, groups,
    k_row, k_head, k_step, v_row, v_head, v_step,
    ONE_TENSOR: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write outputs and log-sum-exp of all queries of a key head over one split of the keys."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, g = head // groups, head % groups
    row, at = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    cells = (row < rows)[:, None] & (at < width)[None, :]
    x = tl.load(q + (head * rows + row)[:, None] * width + at[None, :], mask=cells, other=0.0)
    if UPCAST:
        x = x.to(tl.float32)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    first = split * per_split
    last = tl.minimum(first + per_split, keys)
    for start in range(first, last, BLOCK):
        s = start + tl.arange(0, BLOCK)
        real = s < last
        if MASKED:
            real = real & (tl.load(valid + b * keys + s, mask=real, other=0) != 0)
        tile = real[:, None] & (at < width)[None, :]
        where = k + b * k_row + g * k_head + s[:, None] * k_step + at[None, :]
        key = tl.load(where, mask=tile, other=0.0)
        if UPCAST:
            key = key.to(tl.float32)
        score = tl.dot(x, tl.trans(key), input_precision="ieee") * scale
        seen = real[None, :]
        if CAUSAL:
            seen = seen & (s[None, :] <= keys - queries + (row % queries)[:, None])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        if ONE_TENSOR:
            value = key
        else:
            where = v + b * v_row + g * v_head + s[:, None] * v_step + at[None, :]
            value = tl.load(where, mask=tile, other=0.0)
            if UPCAST:
                value = value.to(tl.float32)
        factor = tl.exp(best - base)
        added = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        acc = acc * factor[:, None] + added
        total = total * factor + tl.sum(weight, 1)
        best = higher
    over = tl.where(total == 0.0, 1.0, total)
    place = (head * tl.num_programs(1) + split) * rows + row
    tl.store(parts + place[:, None] * width + at[None, :], acc / over[:, None], mask=cells)
    tl.store(lse + place, best + tl.log(over), mask=row < rows)


@_jit
def _merge(
    parts, lse, out, rows, splits, width, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the mean of one query's parts, weighted by what each split's weights sum to."""
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, at = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    place = (head * splits + split) * rows + row
    logs = tl.load(lse + place, mask=split < splits, other=float("-inf"))
    best = tl.max(logs, 0)
    weight = tl.exp(logs - tl.where(best == float("-inf"), 0.0, best))
    cells = (split < splits)[:, None] & (at < width)[None, :]
    part = tl.load(parts + place[:, None] * width + at[None, :], mask=cells, other=0.0)
    total = tl.sum(weight, 0)
    mean = tl.sum(part * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + (head * rows + row) * width + at, mean, mask=at < width)


@_jit
def _states(
    k, v, states, length, features, width, chunks,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Write the sum of k_s v_s^T before each chunk, for some columns of v."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    f = tl.arange(0, FEATURES)
    cells = (f < features)[:, None] & (column < width)[None, :]
    state = tl.zeros([FEATURES, COLUMNS], tl.float32)
    for chunk in range(chunks):
        place = states + ((head * chunks + chunk) * features + f)[:, None] * width
        tl.store(place + column[None, :], state, mask=cells)
        s = chunk * CHUNK + tl.arange(0, CHUNK)
        key = tl.load(
            k + (head * length + s)[:, None] * features + f[None, :],
            mask=(s < length)[:, None] & (f < features)[None, :],
            other=0.0,
        )
        value = tl.load(
            v + (head * length + s)[:, None] * width + column[None, :],
            mask=(s < length)[:, None] & (column < width)[None, :],
            other=0.0,
        )
        state += tl.dot(tl.trans(key), value, input_precision="ieee")


@_jit
def _sums(
    q, k, v, states, out, length, features, width, chunks,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Write the outputs of one chunk: its own pairs, and the state before it."""
    head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    f, at = tl.arange(0, FEATURES), tl.arange(0, CHUNK)
    s = chunk * CHUNK + at
    rows = (head * length + s)[:, None]
    inside = (s < length)[:, None] & (f < features)[None, :]
    cells = (s < length)[:, None] & (column < width)[None, :]
    query = tl.load(q + rows * features + f[None, :], mask=inside, other=0.0)
    key = tl.load(k + rows * features + f[None, :], mask=inside, other=0.0)
    value = tl.load(v + rows * width + column[None, :], mask=cells, other=0.0)
    place = states + ((head * chunks + chunk) * features + f)[:, None] * width
    known = (f < features)[:, None] & (column < width)[None, :]
    state = tl.load(place + column[None, :], mask=known, other=0.0)
    pairs = tl.dot(query, tl.trans(key), input_precision="ieee")
    pairs = tl.where(at[:, None] >= at[None, :], pairs, 0.0)
    sums = tl.dot(pairs, value, input_precision="ieee")
    sums += tl.dot(query, state, input_precision="ieee")
    tl.store(out + rows * width + column[None, :], sums, mask=cells)
