"""Rotary positions as loops: pairs of features turned by position times frequency."""

from __future__ import annotations

import math

from .loops import attention, everything, linear


def plain(theta, width):
    return [theta ** (-2 * i / width) for i in range(width // 2)]


def spun(rows, heads, layout, frequencies, amplitude=1.0, positions=None):
    """The rows with the pairs of each head turned; features beyond the pairs stay."""
    width, count, out = len(rows[0]) // heads, len(frequencies), []
    for position, row in zip(positions or range(len(rows)), rows, strict=True):
        new = list(row)
        for h in range(heads):
            for i, frequency in enumerate(frequencies):
                a, b = (i, i + count) if layout == "half" else (2 * i, 2 * i + 1)
                a, b = h * width + a, h * width + b
                cos, sin = math.cos(position * frequency), math.sin(position * frequency)
                new[a] = amplitude * (row[a] * cos - row[b] * sin)
                new[b] = amplitude * (row[a] * sin + row[b] * cos)
        out.append(new)
    return out


def of_layer(layer, x, frequencies, amplitude=1.0, see=everything):
    spec = layer.spec
    q, k, v = (
        linear(x, part) if hasattr(part, "weight") else x  # columns of x
        for part in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    turn = (spec.position.layout, frequencies, amplitude)
    return attention(
        layer,
        spun(q, spec.num_heads, *turn),
        spun(k, spec.kv_heads, *turn),
        v,
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=len(q[0]) // spec.num_heads,
        see=see,
    )
