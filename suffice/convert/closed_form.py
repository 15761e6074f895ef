"""The maps of an inexact conversion: in closed form, or the usual starts."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.calibration import RIDGE, Moments, ridged
from suffice.convert.maps import Maps
from suffice.convert.target import Step
from suffice.errors import ConfigError
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


def latent(maps: Maps, width: int, moments: Moments, *, bias: bool) -> Maps:
    """Return the layer whose heads all read one latent, as keys and as values.

    Args:
        maps: of the layer, whose keys do not turn.
        width: of the latent, R.
        moments: of the layer's inputs.
        bias: whether the layer has biases.
    """
    spread = ridged(moments.spread(centred=bias))
    lower = torch.linalg.cholesky(spread)
    keys, values = maps.of_query(maps.k), maps.of_query(maps.v)
    products = values[:, :-1] @ maps.o
    of_values = lower.T @ products
    read = _share(torch.einsum("hio,hjo->ij", of_values, of_values))
    of_keys = lower.T @ keys[:, :-1]
    read += _share(torch.einsum("hid,hde,hje->ij", of_keys, energy(maps.q, moments), of_keys))
    one = torch.linalg.solve_triangular(lower.T, leading(read, width), upper=True)
    q = maps.q @ (one.T @ spread @ keys[:, :-1]).transpose(1, 2)
    o = one.T @ spread @ products
    offset = maps.offset
    if bias:
        lost = (products - one @ o).sum(dim=0)
        offset = offset + moments.mean @ lost + (values[:, -1:] @ maps.o).sum(dim=(0, 1))
    both = with_zero_bias(one[None])
    return Maps(q=q, k=both, v=both, o=o, offset=offset)


def truncated(maps: Maps, width: int) -> Maps:
    """Return the latent that the weights alone suggest: the leading directions of both maps."""
    weights = torch.cat([*maps.k[:, :-1], *maps.v[:, :-1]], dim=1)
    basis = leading(weights @ weights.T, width)
    keys, values = maps.of_query(maps.k), maps.of_query(maps.v)
    both = with_zero_bias(basis[None])
    return replace(
        maps,
        q=maps.q @ (basis.T @ keys[:, :-1]).transpose(1, 2),
        k=both,
        v=both,
        o=basis.T @ values[:, :-1] @ maps.o,
        offset=maps.offset + (values[:, -1:] @ maps.o).sum(dim=(0, 1)),
    )


def _share(moment: Tensor) -> Tensor:
    return moment / moment.diagonal().sum().clamp(min=1e-300)


NAIVE = {
    "gqa": "average",
    "optimised": "dropped W_V",
    "efficient": "dropped W_K and W_V",
    "super": "dropped W_K and W_V",
    "latent": "truncated weights",
    "window": "cut",
}
"""How the usual start of each change is called."""
KEYLESS = ("efficient", "super")  # changes after which keys are columns


def fitted(
    step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec, moments: Moments
) -> Maps:
    """Return the maps that lose least by one change, before the output map is refitted.

    Args:
        step: the change; no window, which changes no map.
        maps: of the layer.
        spec: of the layer.
        after: its composition then.
        moments: of the layer's inputs.

    Raises:
        ConfigError: if the layer mixes its values along the sequence, or norms stand between keys
            and queries that would have to take over what keys lose.
    """
    _refuse_mixing(step, spec)
    _refuse_norm(step, spec)
    if step.name == "gqa":
        return shared(_expanded(maps, after), spec, after.kv_heads, moments)
    if step.name == "latent":
        return latent(maps, after.head_width, moments, bias=spec.bias)
    grouped = with_groups(_expanded(maps, after), spec, after.kv_heads, moments)
    sliced = sliced_values(grouped, after.kv_heads, moments, bias=spec.bias)
    return sliced if step.name == "optimised" else sliced_keys(sliced, spec, moments)


def naive(step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps:
    """Return the maps that are usually taken for one change, which look at no text.

    Raises:
        ConfigError: if the layer mixes its values along the sequence.
    """
    if step.name == "window":
        return maps
    _refuse_mixing(step, spec)
    if step.name == "gqa":
        return averaged(_expanded(maps, after), after.kv_heads)
    if step.name == "latent":
        return truncated(maps, after.head_width)
    return dropped(_expanded(maps, after), after.kv_heads, keys=step.name != "optimised")


def _expanded(maps: Maps, after: AttentionSpec) -> Maps:
    """Return maps with a head for each query where groups before and after do not nest."""
    nested = len(maps.k) % after.kv_heads == 0 or after.kv_heads % len(maps.k) == 0
    return maps if nested else maps.with_heads(len(maps.q))


def _refuse_mixing(step: Step, spec: AttentionSpec) -> None:
    if spec.mixing.mixes:
        raise ConfigError(
            f"{step}: the layer mixes its values by {spec.mixing!r}, which no closed form here "
            "looks through; keep it, or convert it to standard."
        )


def _refuse_norm(step: Step, spec: AttentionSpec) -> None:
    if spec.norm.norms and step.name in KEYLESS:
        raise ConfigError(
            f"{step}: {type(spec.norm).__name__} stands between keys and queries, so no map of the "
            "queries can make up for keys that are columns; take optimised, which keeps the keys, "
            "or naive=True (--naive)."
        )


class Regression:
    """Sums for the least squares of a layer's output on what another layer's output map reads.

    Args:
        features: F.
        outputs: M.
        bias: whether the output map has one.
    """

    def __init__(self, features: int, outputs: int, *, bias: bool) -> None:
        self.bias = bias
        size = features + bias
        self.gram = torch.zeros(size, size, dtype=torch.float64)
        self.cross = torch.zeros(size, outputs, dtype=torch.float64)
        self.energy = 0.0

    def add(self, z: Tensor, y: Tensor) -> None:
        """Take features [N, F] and wanted outputs [N, M]."""
        z, y = z.double().cpu(), y.double().cpu()
        if self.bias:
            z = torch.nn.functional.pad(z, (0, 1), value=1.0)
        self.gram += z.T @ z
        self.cross += z.T @ y
        self.energy += float(y.square().sum())

    def refitted(self, maps: Maps) -> Maps:
        """Return the maps with the output map that fits best.

        The ridge pulls towards the map that is there, so that the fit is never worse than it.
        """
        before = self._rows(maps)
        ridge = RIDGE * self.gram.diagonal().mean().clamp(min=1e-12)
        inverted = self.gram + ridge * torch.eye(len(self.gram), dtype=self.gram.dtype)
        rows = before + torch.linalg.solve(inverted, self.cross - self.gram @ before)
        if not self.bias:
            return replace(maps, o=rows.view_as(maps.o))
        return replace(maps, o=rows[:-1].view_as(maps.o), offset=rows[-1])

    def error(self, maps: Maps) -> float:
        """Return the root mean square of the output's error over that of the output."""
        rows = self._rows(maps)
        lost = (rows * (self.gram @ rows - 2 * self.cross)).sum() + self.energy
        return math.sqrt(max(float(lost), 0.0) / max(self.energy, 1e-300))

    def _rows(self, maps: Maps) -> Tensor:
        rows = maps.o.flatten(0, 1)
        return torch.cat([rows, maps.offset[None]]) if self.bias else rows
