"""One latent for keys and values: the map whose few features tell most of what all heads read.

Letters: H query heads, D head width, M inputs, R latent width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.maps import Maps
from suffice.convert.moments import Moments, ridged
from suffice.convert.sharing import energy, leading, with_zero_bias


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
