"""Maps of approximate conversions: fitted in closed form, or the usual starts without a fit.

Letters: H query heads, G key/value heads, D head width, M d_model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.calibration import Moments, with_ridge
from suffice.convert.maps import Maps
from suffice.convert.target import Step
from suffice.errors import ConfigError
from suffice.positions import Rope
from suffice.spec import AttentionSpec

USUAL_STARTS = {
    "gqa": "average",
    "optimised": "dropped W_V",
    "efficient": "dropped W_K and W_V",
    "super": "dropped W_K and W_V",
    "latent": "truncated weights",
    "window": "cut",
    "linear": "the softmax's maps",
    "gla": "the softmax's maps",
    "mla": "truncated weights",
}
"""The name of the usual start of each change."""
KEYS_ARE_COLUMNS = ("efficient", "super")  # after these changes


def fitted(
    step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec, moments: Moments
) -> Maps:
    """Return the maps after one change with the least error, before the output map is refitted."""
    check_unmixed(step, spec)
    if not has_closed_form(step.name, spec):
        raise ConfigError(
            f"{step}: {type(spec.norm).__name__} acts between keys and queries, so no map of the "
            "queries can make up for keys that are columns; take optimised, which keeps the keys, "
            "or naive=True (--naive)."
        )
    if step.name == "latent":
        return latent(maps, after.head_width, moments, bias=spec.bias)
    kv_heads, maps = after.kv_heads, _nested(maps, after.kv_heads)
    if step.name == "gqa":
        return shared(maps, spec, kv_heads, moments)
    if kv_heads >= len(maps.k):
        grouped = maps.with_heads(kv_heads)
    else:
        k, q = _shared_keys(maps, spec, kv_heads, moments)
        grouped = replace(maps, k=k, q=q)
    sliced = sliced_values(grouped, kv_heads, moments, bias=spec.bias)
    return sliced if step.name == "optimised" else sliced_keys(sliced, spec, moments)


def has_closed_form(name: str, spec: AttentionSpec) -> bool:
    """Return whether a change that is not exact can be fitted in a layer without mixing."""
    return not (spec.norm.norms and name in KEYS_ARE_COLUMNS)


def naive(step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps:
    """Return the maps that are usually taken after one change, without calibration."""
    if step.name == "window":
        return maps
    check_unmixed(step, spec)
    if step.name == "latent":
        return truncated(maps, after.head_width)
    maps = _nested(maps, after.kv_heads)
    if step.name == "gqa":
        return averaged(maps, after.kv_heads)
    return dropped(maps, after.kv_heads, keys=step.name != "optimised")


def _nested(maps: Maps, kv_heads: int) -> Maps:
    """Give each query head its own key/value head where groups before and after do not nest."""
    nested = len(maps.k) % kv_heads == 0 or kv_heads % len(maps.k) == 0
    return maps if nested else maps.with_heads(len(maps.q))


def check_unmixed(step: Step, spec: AttentionSpec) -> None:
    """Raise ConfigError for a layer with a mixing, for which no change has a closed form."""
    if "mixing" in spec.beyond_pairs:
        raise ConfigError(
            f"{step}: the layer mixes its values by {spec.mixing!r}, for which there is no closed "
            "form; keep it, or convert it to standard."
        )


def shared(maps: Maps, spec: AttentionSpec, kv_heads: int, moments: Moments) -> Maps:
    """Return the layer with fewer key/value heads, a divisor of those before; neighbours share."""
    k, q = _shared_keys(maps, spec, kv_heads, moments)
    v, o, offset = _shared_values(maps, kv_heads, moments, bias=spec.bias)
    return Maps(q=q, k=k, v=v, o=o, offset=offset)


def _shared_values(
    maps: Maps, kv_heads: int, moments: Moments, *, bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    second = with_ridge(moments.second(centred=bias))
    lower = torch.linalg.cholesky(second)
    width, values = maps.v.shape[-1], maps.per_query(maps.v)
    products = values[:, :-1] @ maps.o  # the linear map of each head, [H, M, M]
    v, o = [], []
    for heads in products.chunk(kv_heads):
        whitened = torch.einsum("ji,hjo->hio", lower, heads)
        top = _top_eigenvectors(torch.einsum("hio,hjo->ij", whitened, whitened), width)
        basis = torch.linalg.solve_triangular(lower.T, top, upper=True)
        v.append(basis)
        o.append(basis.T @ second @ heads)
    new_v, new_o = _with_zero_bias(torch.stack(v)), torch.cat(o)
    offset = maps.offset
    if bias:
        repeated = new_v[:, :-1].repeat_interleave(len(maps.q) // kv_heads, dim=0)
        lost = (products - repeated @ new_o).sum(dim=0)
        offset = offset + moments.mean @ lost + maps.value_bias
    return new_v, new_o, offset


def _shared_keys(
    maps: Maps, spec: AttentionSpec, kv_heads: int, moments: Moments
) -> tuple[Tensor, Tensor]:
    if spec.norm.norms:
        # keys of equal size on the calibration are averaged, as the norm divides by their size
        power = query_moments(maps.k, moments).diagonal(dim1=1, dim2=2).sum(dim=1)
        scaled = maps.k / power.sqrt().clamp(min=1e-150)[:, None, None]
        return maps.per_query(scaled).unflatten(0, (kv_heads, -1)).mean(dim=1), maps.q
    k, q = [], []
    groups = zip(maps.q.chunk(kv_heads), maps.per_query(maps.k).chunk(kv_heads), strict=True)
    pairs, unrotated = rotary_pairs(spec.lower().rotary, maps.k.shape[-1])
    for queries, keys in groups:
        new_k, new_q = torch.zeros_like(keys[0]), torch.zeros_like(queries)
        for a, b in pairs:
            new_k[:, [a, b]], new_q[:, :, [a, b]] = shared_pair(
                queries[:, :, [a, b]], keys[:, :, [a, b]], moments, bias=spec.bias
            )
        if unrotated:
            new_k[:, unrotated], new_q[:, :, unrotated] = _shared_unrotated(
                queries[:, :, unrotated], keys[:, :, unrotated], moments
            )
        k.append(new_k)
        q.append(new_q)
    return torch.stack(k), torch.cat(q)


def shared_pair(
    queries: Tensor, keys: Tensor, moments: Moments, *, bias: bool
) -> tuple[Tensor, Tensor]:
    """Return a shared rotary pair [M + 1, 2] and the queries' pairs [H, M + 1, 2]."""
    second = with_ridge(moments.augmented if bias else moments.second(centred=False))
    size = len(second)
    lower = torch.linalg.cholesky(second)
    columns = torch.view_as_complex(keys.contiguous())[:, :size]  # [H, size]
    whitened = columns @ lower.to(columns.dtype)
    weights = query_moments(queries, moments).diagonal(dim1=1, dim2=2).sum(dim=1)
    scaled = weights.sqrt()[:, None] * whitened
    top = torch.linalg.svd(scaled.T, full_matrices=False).U[:, :1]  # heads are few, features many
    factors = whitened @ top[:, 0].conj()
    key = torch.linalg.solve_triangular(lower.T.to(top.dtype), top, upper=True)[:, 0]
    pair = torch.view_as_real(key)
    if not bias:
        pair = torch.cat([pair, pair.new_zeros(1, 2)])
    return pair, times_conjugate(queries, factors)


def _shared_unrotated(queries: Tensor, keys: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return shared features [M + 1, D] and the queries' [H, M + 1, D]; no bias is needed."""
    second = with_ridge(moments.second(centred=True))
    lower = torch.linalg.cholesky(second)
    whitened = lower.T @ keys[:, :-1]  # [H, M, D]
    products = torch.einsum("hid,hde,hje->ij", whitened, query_moments(queries, moments), whitened)
    top = _top_eigenvectors(products, keys.shape[-1])
    basis = torch.linalg.solve_triangular(lower.T, top, upper=True)
    factors = basis.T @ second @ keys[:, :-1]  # [H, D new, D]
    return _with_zero_bias(basis), queries @ factors.transpose(1, 2)


def averaged(maps: Maps, kv_heads: int) -> Maps:
    """Return the layer whose shared heads are the means of theirs: the usual start."""
    k, v = (part.unflatten(0, (kv_heads, -1)).mean(dim=1) for part in (maps.k, maps.v))
    return replace(maps, k=k, v=v)


def sliced_values(maps: Maps, kv_heads: int, moments: Moments, *, bias: bool) -> Maps:
    """Return the layer whose values are the first columns of its input."""
    heads, width = len(maps.q), maps.v.shape[-1]
    second = with_ridge(moments.second(centred=bias))
    v, offset = maps.per_query(maps.v), maps.offset
    o = torch.empty_like(maps.o)
    for head in range(heads):
        columns = columns_of(head * kv_heads // heads, width)
        product = v[head, :-1] @ maps.o[head]
        o[head] = torch.linalg.solve(second[columns, columns], second[columns] @ product)
        if bias:
            lost = moments.mean @ product - moments.mean[columns] @ o[head]
            offset = offset + lost + v[head, -1] @ maps.o[head]
    return replace(maps, v=column_maps(len(second), kv_heads, width), o=o, offset=offset)


def sliced_keys(maps: Maps, spec: AttentionSpec, moments: Moments) -> Maps:
    """Return the layer whose keys are the first columns of its input, a slice for each head."""
    width = maps.k.shape[-1]
    covariance, second = with_ridge(moments.second(centred=True)), moments.augmented
    pairs, unrotated = rotary_pairs(spec.lower().rotary, width)
    keys, q = maps.per_query(maps.k), torch.zeros_like(maps.q)
    for head in range(len(q)):
        first = columns_of(head // maps.group_size, width).start
        for a, b in pairs:
            rows = second[[first + a, first + b]]
            power = rows[:, [first + a, first + b]].diagonal().sum().clamp(min=1e-12)
            key = torch.view_as_complex(keys[head, :, [a, b]].contiguous())
            factor = torch.complex(rows[0], -rows[1]) @ key / power
            q[head, :, [a, b]] = times_conjugate(maps.q[[head]][:, :, [a, b]], factor[None])[0]
        if unrotated:
            at = [first + feature for feature in unrotated]
            fit = torch.linalg.solve(
                covariance[at][:, at], covariance[at] @ keys[head, :-1, unrotated]
            )
            q[head, :, unrotated] = maps.q[head, :, unrotated] @ fit.T
    return replace(maps, q=q, k=column_maps(len(covariance), len(maps.k), width))


def dropped(maps: Maps, kv_heads: int, *, keys: bool) -> Maps:
    """Return the layer that reads columns with its other maps unchanged: the usual start."""
    columns = column_maps(maps.k.shape[1] - 1, kv_heads, maps.k.shape[-1])
    if keys:
        return replace(maps, k=columns, v=columns)
    grouped = averaged(maps, kv_heads) if len(maps.k) > kv_heads else maps.with_heads(kv_heads)
    return replace(maps, k=grouped.k, v=columns)


def latent(maps: Maps, width: int, moments: Moments, *, bias: bool) -> Maps:
    """Return the layer whose heads all read one latent, as keys and as values."""
    keys, values = maps.per_query(maps.k), maps.per_query(maps.v)
    products = values[:, :-1] @ maps.o
    basis, up = joint_basis(maps.q, keys, products, moments, width, centred=bias)
    q = maps.q @ (up @ keys[:, :-1]).transpose(1, 2)
    o = up @ products
    offset = maps.offset
    if bias:
        lost = (products - basis @ o).sum(dim=0)
        offset = offset + moments.mean @ lost + maps.value_bias
    both = _with_zero_bias(basis[None])
    return Maps(q=q, k=both, v=both, o=o, offset=offset)


def joint_basis(
    queries: Tensor,
    keys: Tensor,
    products: Tensor,
    moments: Moments,
    width: int,
    *,
    centred: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the latent x B that keeps most of the keys' and the values' effect.

    Of maps of queries and keys [H, M + 1, D], and of values times the output map [H, M, M]; means
    are left to biases if `centred`. Also returns the map [R, M] that, times a map of x, is the best
    map of the latent in its place. Features of x B have variance 1 and do not correlate.
    """
    second = with_ridge(moments.second(centred=centred))
    lower = torch.linalg.cholesky(second)
    white_values, white_keys = lower.T @ products, lower.T @ keys[:, :-1]
    of_values = torch.einsum("hio,hjo->ij", white_values, white_values)
    of_keys = torch.einsum(
        "hid,hde,hje->ij", white_keys, query_moments(queries, moments), white_keys
    )
    top = _top_eigenvectors(_normalised(of_values) + _normalised(of_keys), width)
    basis = torch.linalg.solve_triangular(lower.T, top, upper=True)
    return basis, basis.T @ second


def truncated(maps: Maps, width: int) -> Maps:
    """Return the latent of the leading directions of the weights of both maps: the usual start."""
    weights = torch.cat([*maps.k[:, :-1], *maps.v[:, :-1]], dim=1)
    basis = _top_eigenvectors(weights @ weights.T, width)
    keys, values = maps.per_query(maps.k), maps.per_query(maps.v)
    both = _with_zero_bias(basis[None])
    return replace(
        maps,
        q=maps.q @ (basis.T @ keys[:, :-1]).transpose(1, 2),
        k=both,
        v=both,
        o=basis.T @ values[:, :-1] @ maps.o,
        offset=maps.offset + maps.value_bias,
    )


def _normalised(moment: Tensor) -> Tensor:
    return moment / moment.diagonal().sum().clamp(min=1e-300)


def rotary_pairs(rope: Rope | None, head_dim: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the pairs of a head's features that rotate together, and the unrotated features."""
    rotated = 0 if rope is None else rope.features or head_dim
    half = range(rotated // 2)
    if rope is None or rope.layout == "half":
        pairs = [(p, p + rotated // 2) for p in half]
    else:
        pairs = [(2 * p, 2 * p + 1) for p in half]
    return pairs, list(range(rotated, head_dim))


def query_moments(queries: Tensor, moments: Moments) -> Tensor:
    """Return E[q q^T] of each head [H, D, D], for maps [H, M + 1, D]."""
    return queries.transpose(1, 2) @ moments.augmented @ queries


def times_conjugate(pair: Tensor, factors: Tensor) -> Tensor:
    """Return feature pairs [H, M + 1, 2], as complex numbers, times conj(factors [H])."""
    rotated = torch.view_as_complex(pair.contiguous()) * factors.conj()[:, None]
    return torch.view_as_real(rotated)


def _top_eigenvectors(matrix: Tensor, count: int) -> Tensor:
    """Return the leading eigenvectors of a Hermitian matrix as columns, padded with zeros."""
    vectors = torch.linalg.eigh((matrix + matrix.mH) / 2).eigenvectors[:, -count:].flip(1)
    return torch.nn.functional.pad(vectors, (0, count - vectors.shape[1]))


def _with_zero_bias(maps: Tensor) -> Tensor:
    return torch.nn.functional.pad(maps, (0, 0, 0, 1))


def columns_of(kv_head: int, width: int) -> slice:
    return slice(kv_head * width, (kv_head + 1) * width)


def column_maps(inputs: int, kv_heads: int, width: int) -> Tensor:
    """Return the maps that take the first columns of the input, [G, M + 1, D]."""
    eye = torch.eye(inputs + 1, dtype=torch.float64)
    return torch.stack([eye[:, columns_of(head, width)] for head in range(kv_heads)])
