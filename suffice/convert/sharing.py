"""Fewer key/value heads: the one shared map that loses least on the calibration text.

Values, and keys that do not turn, are shared by reduced-rank regression: of all maps of the shared
width, the one whose products with the heads' own output or query maps change least in the metric
of the inputs. Of keys that turn, each pair of features is one complex number, and what is shared
is the leading principal component of the heads' pairs. Of keys that are normalised, nothing can be
taken into the queries: what is shared is the mean of the heads' keys, each at size 1.

Letters: H query heads, G key/value heads before, N after, D head width, M inputs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.maps import Maps
from suffice.convert.moments import Moments, ridged
from suffice.positions import Position, Rope
from suffice.spec import AttentionSpec


def shared(maps: Maps, spec: AttentionSpec, kv_heads: int, moments: Moments) -> Maps:
    """Return the layer with fewer key/value heads; neighbours share.

    Args:
        maps: of the layer.
        spec: of the layer before.
        kv_heads: after, N; divides the number before.
        moments: of the layer's inputs.
    """
    k, q = shared_keys(maps, spec, kv_heads, moments)
    v, o, offset = shared_values(maps, kv_heads, moments, bias=spec.bias)
    return Maps(q=q, k=k, v=v, o=o, offset=offset)


def shared_values(
    maps: Maps, kv_heads: int, moments: Moments, *, bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return v [N, M + 1, D], o [H, D, M] and the offset [M] of shared values."""
    spread = ridged(moments.spread(centred=bias))
    lower = torch.linalg.cholesky(spread)
    width, of_query = maps.v.shape[-1], maps.of_query(maps.v)
    products = of_query[:, :-1] @ maps.o  # what each head makes of the input, [H, M, M]
    v, o = [], []
    for heads in products.chunk(kv_heads):
        stacked = torch.einsum("ji,hjo->hio", lower, heads)
        top = leading(torch.einsum("hio,hjo->ij", stacked, stacked), width)
        one = torch.linalg.solve_triangular(lower.T, top, upper=True)
        v.append(one)
        o.append(one.T @ spread @ heads)
    new_v, new_o = with_zero_bias(torch.stack(v)), torch.cat(o)
    offset = maps.offset
    if bias:
        times = len(maps.q) // kv_heads
        lost = (products - new_v[:, :-1].repeat_interleave(times, dim=0) @ new_o).sum(dim=0)
        offset = offset + moments.mean @ lost + (of_query[:, -1:] @ maps.o).sum(dim=(0, 1))
    return new_v, new_o, offset


def shared_keys(
    maps: Maps, spec: AttentionSpec, kv_heads: int, moments: Moments
) -> tuple[Tensor, Tensor]:
    """Return k [N, M + 1, D] and q [H, M + 1, D] of shared keys."""
    if spec.norm.norms:
        return _mean_direction(maps, kv_heads, moments), maps.q
    k, q = [], []
    groups = zip(maps.q.chunk(kv_heads), maps.of_query(maps.k).chunk(kv_heads), strict=True)
    pairs, still = turning(spec.position, maps.k.shape[-1])
    for queries, keys in groups:
        one, new = torch.zeros_like(keys[0]), torch.zeros_like(queries)
        for a, b in pairs:
            one[:, [a, b]], new[:, :, [a, b]] = _shared_pair(
                queries[:, :, [a, b]], keys[:, :, [a, b]], moments, bias=spec.bias
            )
        if still:
            one[:, still], new[:, :, still] = _shared_still(
                queries[:, :, still], keys[:, :, still], moments
            )
        k.append(one)
        q.append(new)
    return torch.stack(k), torch.cat(q)


def _mean_direction(maps: Maps, kv_heads: int, moments: Moments) -> Tensor:
    """Return k [N, M + 1, D] of keys that a norm follows: their sizes on the text do not count."""
    sizes = energy(maps.k, moments).diagonal(dim1=1, dim2=2).sum(dim=1).sqrt()
    keys = maps.k / sizes.clamp(min=1e-150)[:, None, None]
    return maps.of_query(keys).unflatten(0, (kv_heads, -1)).mean(dim=1)


def turning(position: Position, head_dim: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the pairs of features of a head that turn together, and the features that stay.

    Example:
        >>> turning(Rope(features=4, layout="interleaved"), 6)
        ([(0, 1), (2, 3)], [4, 5])
    """
    if not isinstance(position, Rope):
        return [], list(range(head_dim))
    turns = position.features or head_dim
    if position.layout == "half":
        pairs = [(p, p + turns // 2) for p in range(turns // 2)]
    else:
        pairs = [(2 * p, 2 * p + 1) for p in range(turns // 2)]
    return pairs, list(range(turns, head_dim))


def energy(queries: Tensor, moments: Moments) -> Tensor:
    """Return E[q q^T] of each head [H, D, D], for maps [H, M + 1, D]."""
    return queries.transpose(1, 2) @ moments.augmented @ queries


def times_conjugate(pair: Tensor, factor: Tensor) -> Tensor:
    """Return feature pairs [H, M + 1, 2], as complex numbers, times conj(factor) [H]."""
    turned = torch.view_as_complex(pair.contiguous()) * factor.conj()[:, None]
    return torch.view_as_real(turned)


def _shared_pair(
    queries: Tensor, keys: Tensor, moments: Moments, *, bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the shared pair [M + 1, 2] and the queries' pairs [H, M + 1, 2]."""
    second = ridged(moments.augmented if bias else moments.spread(centred=False))
    size = len(second)
    lower = torch.linalg.cholesky(second)
    columns = torch.view_as_complex(keys.contiguous())[:, :size]  # [H, size]
    seen = columns @ lower.to(columns.dtype)
    share = energy(queries, moments).diagonal(dim1=1, dim2=2).sum(dim=1)
    top = leading(torch.einsum("h,hi,hj->ij", share.to(seen.dtype), seen, seen.conj()), 1)
    factor = seen @ top[:, 0].conj()
    one = torch.linalg.solve_triangular(lower.T.to(top.dtype), top, upper=True)[:, 0]
    pair = torch.view_as_real(one)
    if not bias:
        pair = torch.cat([pair, pair.new_zeros(1, 2)])
    return pair, times_conjugate(queries, factor)


def _shared_still(queries: Tensor, keys: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return the shared features [M + 1, D] and the queries' [H, M + 1, D]; no bias is needed."""
    spread = ridged(moments.spread(centred=True))
    lower = torch.linalg.cholesky(spread)
    seen = lower.T @ keys[:, :-1]  # [H, M, D]
    products = torch.einsum("hid,hde,hje->ij", seen, energy(queries, moments), seen)
    top = leading(products, keys.shape[-1])
    one = torch.linalg.solve_triangular(lower.T, top, upper=True)
    factor = one.T @ spread @ keys[:, :-1]  # [H, D new, D]
    return torch.cat([one, one.new_zeros(1, one.shape[1])]), queries @ factor.transpose(1, 2)


def leading(matrix: Tensor, count: int) -> Tensor:
    """Return the eigenvectors of the largest eigenvalues of a Hermitian matrix, as columns.

    Zeros follow where more are asked for than there are.
    """
    found = torch.linalg.eigh((matrix + matrix.mH) / 2).eigenvectors[:, -count:].flip(1)
    return torch.nn.functional.pad(found, (0, count - found.shape[1]))


def with_zero_bias(maps: Tensor) -> Tensor:
    """Return maps with a row of zeros below them, [..., M + 1, D]."""
    return torch.nn.functional.pad(maps, (0, 0, 0, 1))


def averaged(maps: Maps, kv_heads: int) -> Maps:
    """Return the layer whose shared heads are the means of theirs: the usual start."""
    means = (part.unflatten(0, (kv_heads, -1)).mean(dim=1) for part in (maps.k, maps.v))
    return replace(maps, **dict(zip("kv", means, strict=True)))
