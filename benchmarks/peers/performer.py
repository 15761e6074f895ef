"""performer-pytorch (lucidrains): causal FAVOR+ with its own features and its own matrix.

It is right if it computes its own definition, kept below: positive features plus 1e-4, keys scaled
by one maximum over all positions, 1e-6 in the divisor.

Letters: B batch, H heads, T positions, D head width, F features.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial

import torch
from torch import Tensor

from benchmarks.contest import Side, timed
from benchmarks.exact import check
from benchmarks.peers.installed import package


def side(inputs: tuple[Tensor, ...], *, features: int) -> Side:
    """Return FastAttention on q, k, v.

    Raises:
        Absent: if it is not installed.
    """
    module = package("performer-pytorch", "performer_pytorch")
    length, width = inputs[0].shape[2:]
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):  # it tells that it found no CUDA code
        attention = module.FastAttention(width, nb_features=features, causal=True)
    exact = partial(definition, omega=attention.projection_matrix)
    return Side(
        name="performer-pytorch",
        call=timed(attention, inputs, backward=False),
        check=partial(check, attention, exact, inputs, backward=False, n=length * features),
    )


def definition(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, *, omega: Tensor) -> Tensor:
    """Return rows of what the package defines, in the dtype of q."""
    omega = omega.to(q.dtype)

    def features(x: Tensor, over: tuple[int, ...]) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        projected = x @ omega.T
        peak = projected.amax(dim=over, keepdim=True)
        powers = torch.exp(projected - x.square().sum(-1, keepdim=True) / 2 - peak) + 1e-4
        return powers * len(omega) ** -0.5

    q_features, k_features = features(q[:, :, rows], (-1,)), features(k, (-1, -2))
    weights = q_features @ k_features.transpose(-1, -2)
    weights = weights * (torch.arange(k.shape[2]) <= rows[:, None])
    floor = 1e-6 * q_features.sum(-1, keepdim=True)
    return weights @ v / (weights.sum(-1, keepdim=True) + floor)
