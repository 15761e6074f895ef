"""Keys and values as columns of the input: what the other maps must become for that.

A head's values are regressed on its columns, so that the output map reads the columns instead. Its
keys likewise, and the query map takes what stands between; of keys that turn, each pair of features
is one complex number, and only a complex factor can be taken over.

Letters: H query heads, G key/value heads, D head width, M inputs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.maps import Maps
from suffice.convert.moments import Moments, ridged
from suffice.convert.sharing import shared_keys, times_conjugate, turning
from suffice.spec import AttentionSpec


def sliced_values(maps: Maps, kv_heads: int, moments: Moments, *, bias: bool) -> Maps:
    """Return the layer whose values are the first columns of its input.

    Args:
        maps: of the layer, whose number of key/value heads does not matter here.
        kv_heads: that read columns, neighbours sharing them.
        moments: of the layer's inputs.
        bias: whether the layer has biases.
    """
    heads, width = len(maps.q), maps.v.shape[-1]
    spread = ridged(moments.spread(centred=bias))
    v, offset = maps.of_query(maps.v), maps.offset
    o = torch.empty_like(maps.o)
    for head in range(heads):
        at = columns_of(head * kv_heads // heads, width)
        product = v[head, :-1] @ maps.o[head]
        o[head] = torch.linalg.solve(spread[at, at], spread[at] @ product)
        if bias:
            kept = moments.mean @ product - moments.mean[at] @ o[head]
            offset = offset + kept + v[head, -1] @ maps.o[head]
    return replace(maps, v=slices(len(spread), kv_heads, width), o=o, offset=offset)


def sliced_keys(maps: Maps, spec: AttentionSpec, moments: Moments) -> Maps:
    """Return the layer whose keys are the first columns of its input, a slice for each head.

    Args:
        maps: of the layer.
        spec: of the layer, before.
        moments: of the layer's inputs.
    """
    width = maps.k.shape[-1]
    spread, second = ridged(moments.spread(centred=True)), moments.augmented
    pairs, still = turning(spec.position, width)
    keys, q = maps.of_query(maps.k), torch.zeros_like(maps.q)
    for head in range(len(q)):
        first = columns_of(head // maps.shared, width).start
        for a, b in pairs:
            read = second[[first + a, first + b]]
            of_columns = read[:, [first + a, first + b]].diagonal().sum().clamp(min=1e-12)
            key = torch.view_as_complex(keys[head, :, [a, b]].contiguous())
            slice_ = torch.complex(read[0], -read[1])
            factor = (slice_ @ key) / of_columns
            q[head, :, [a, b]] = times_conjugate(maps.q[head : head + 1, :, [a, b]], factor[None])[
                0
            ]
        if still:
            at = [first + feature for feature in still]
            fit = torch.linalg.solve(spread[at][:, at], spread[at] @ keys[head, :-1, still])
            q[head, :, still] = maps.q[head, :, still] @ fit.T
    return replace(maps, q=q, k=slices(len(spread), len(maps.k), width))


def with_groups(maps: Maps, spec: AttentionSpec, kv_heads: int, moments: Moments) -> Maps:
    """Return the layer with keys for so many heads; values are left to `sliced_values`."""
    if kv_heads >= len(maps.k):
        return maps.with_heads(kv_heads)
    k, q = shared_keys(maps, spec, kv_heads, moments)
    return replace(maps, k=k, q=q, v=maps.v)


def columns_of(kv_head: int, width: int) -> slice:
    """Return where the columns of a head stand."""
    return slice(kv_head * width, (kv_head + 1) * width)


def slices(inputs: int, kv_heads: int, width: int) -> Tensor:
    """Return what takes the first columns as maps [G, M + 1, D]."""
    eye = torch.eye(inputs + 1, dtype=torch.float64)
    return torch.stack([eye[:, columns_of(head, width)] for head in range(kv_heads)])


def dropped(maps: Maps, kv_heads: int, *, keys: bool) -> Maps:
    """Return the layer that takes columns and changes no other map: the usual start.

    Args:
        maps: of the layer.
        kv_heads: that read columns.
        keys: whether keys are columns, too.
    """
    inputs, width = maps.k.shape[1] - 1, maps.k.shape[-1]
    columns = slices(inputs, kv_heads, width)
    k = maps.k
    if len(k) < kv_heads:
        k = maps.with_heads(kv_heads).k
    elif len(k) > kv_heads:
        k = k.unflatten(0, (kv_heads, -1)).mean(dim=1)
    return replace(maps, k=columns if keys else k, v=columns)
