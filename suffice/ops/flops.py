"""FLOP formulas of operators that torch's FlopCounterMode lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from suffice.kernels import recurrent
from suffice.kernels.base import CHUNK, flops
from suffice.memory import Memory
from suffice.ops import linear
from suffice.ops.op import value_of
from suffice.ops.sparse.plan import BACKWARD, FORWARD, cut
from suffice.patterns import Pattern

Shape = Sequence[int]


def register_flops() -> None:
    """Register formulas of the ops of this package with torch's FlopCounterMode.

    `import suffice` leaves it out, because the counter's module loads triton where there is one.
    """
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    formulas = {
        torch.ops.suffice.blocked: _blocked,
        torch.ops.suffice.blocked_backward: _blocked_backward,
        torch.ops.suffice.native: _native,
        torch.ops.suffice.native_backward: _native_backward,
        torch.ops.suffice.native_decode: _decode,
        torch.ops.suffice.native_decode_coded: _decode_coded,
        torch.ops.suffice.native_scan: _native_scan,
        torch.ops.suffice.native_scan_backward: _native_scan_backward,
        torch.ops.suffice.native_recurrence: _native_recurrence,
        torch.ops.suffice.native_recurrence_backward: _native_recurrence_backward,
        torch.ops.aten.baddbmm_: _added,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    }
    if linear.PRESENT:
        formulas[torch.ops.mkldnn._linear_pointwise] = _linear
    for operator, formula in formulas.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)


def _linear(x: Shape, weight: Shape, *_: object, **__: object) -> int:
    return 2 * math.prod(x) * weight[0]


def _added(_out: Shape, a: Shape, b: Shape, **_: object) -> int:
    return 2 * math.prod(a) * b[-1]


def _fused(q: Shape, k: Shape, v: Shape, *_: object, **__: object) -> int:
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


def _native(
    q: Shape,
    k: Shape,
    v: Shape,
    _valid: Shape | None,
    _sinks: Shape | None,
    pattern: str,
    *_: object,
    **__: object,
) -> int:
    return 2 * _pairs(q, k, pattern) * (q[3] + v[3])


def _native_backward(*args: Any, **_: object) -> int:
    q, k, v, pattern = *args[1:4], args[8]
    return _pairs(q, k, pattern) * (6 * q[3] + 4 * v[3])


def _decode(q: Shape, k: Shape, v: Shape, before: int, *_: object, **__: object) -> int:
    keys = min(k[2], before + q[2])
    return 2 * math.prod(q[:3]) * keys * (q[3] + v[3])


def _decode_coded(*args: Any, **_: object) -> int:
    q, blocks, spans, window = args[0], args[2], args[4], args[6]
    near, old = spans[1] - spans[0], 0
    if blocks:
        old = (spans[4] - spans[3]) * value_of(Memory, args[5]).block
    keys = near + old if window is None else min(near + old, window + q[2] - 1)
    return 4 * math.prod(q) * keys


def _native_scan(*args: Any, **_: object) -> int:
    q, k, v, omega, causal = *args[:4], args[6]
    projected = 0 if omega is None else 2 * math.prod(omega) * (math.prod(q[:3]) + math.prod(k[:3]))
    return projected + q[0] * flops(
        q[2],
        k[2],
        heads=q[1],
        groups=k[1],
        features=q[3] if omega is None else omega[0],
        value_dim=v[3],
        causal=causal,
    )


def _native_scan_backward(*args: Any, **_: object) -> int:
    """Twice the forward, and in a causal one the pairs of a chunk once more."""
    q, k, v, omega, causal = *args[1:4], args[6], args[9]
    full, rest = divmod(min(q[2], k[2]), CHUNK)
    features = q[3] if omega is None else omega[0]
    again = 2 * features * math.prod(q[:2]) * (full * CHUNK**2 + rest**2) if causal else 0
    return 2 * _native_scan(q, k, v, omega, None, None, causal) + again


def _native_recurrence(*args: Any, **_: object) -> int:
    q, v, decay, beta = args[0], args[2], args[3], args[4]
    return q[0] * recurrent.flops(
        q[2],
        heads=q[1],
        key_width=q[3],
        value_width=v[3],
        by_features=decay is not None and decay[3] > 1,
        corrects=beta is not None,
    )


def _native_recurrence_backward(*args: Any, **_: object) -> int:
    """The forward again, and twice as much for the gradients."""
    return 3 * _native_recurrence(*args[2:])


def _pairs(q: Shape, k: Shape, pattern: str) -> int:
    heads = value_of(Pattern, pattern).of_heads(q[1])
    return q[0] * sum(head.pairs(q[2], k[2]) for head in heads)


def _blocked(*args: Any, **_: object) -> int:
    return _of_tiles(args[0], args[1], args[5], 4, FORWARD)


def _blocked_backward(*args: Any, **_: object) -> int:
    return _of_tiles(args[1], args[2], args[8], 10, BACKWARD)


def _of_tiles(q: Shape, k: Shape, pattern: str, per_pair: int, speed: float) -> int:
    batch, heads, queries, width = q
    cuts = [cut(head, queries, k[2], speed) for head in value_of(Pattern, pattern).of_heads(heads)]
    return per_pair * batch * width * sum(tiles.pairs for tiles in cuts)
