"""What a map along the sequence is before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.errors import unknown

SQUARE = ("glorot", "identity", "orthogonal")
"""The starts of a square map."""

BAND = ("glorot", "identity")
"""The starts of a map given by its diagonals."""


def check_start(name: str, init: str, legal: tuple[str, ...]) -> None:
    """Refuse a start that a mixing of this name does not know.

    Raises:
        ConfigError: with the legal ones.
    """
    if init not in legal:
        raise unknown(f"init of {name}", init, legal)


@torch.no_grad()
def start_square(weight: Tensor, init: str, *, causal: bool) -> None:
    """Fill maps [maps, S, S] in place; causal ones are lower triangular.

    Row t of a causal Glorot start is scaled by sqrt(S / (t + 1)): it has t + 1 terms.
    """
    if weight.is_meta:  # torch would load its compiler to fill nothing
        return
    for one in weight:
        if init == "identity":
            nn.init.eye_(one)
        elif init == "orthogonal":
            exact = torch.promote_types(one.dtype, torch.float32)  # QR knows no half
            one.copy_(nn.init.orthogonal_(torch.empty_like(one, dtype=exact)))
        else:
            nn.init.xavier_uniform_(one)
    if causal:
        if init == "glorot":
            side = weight.shape[-1]
            terms = torch.arange(1, side + 1, device=weight.device)
            weight.mul_((side / terms).sqrt()[:, None])
        weight.tril_()


@torch.no_grad()
def start_band(weight: Tensor, init: str, own: int) -> None:
    """Fill diagonals [..., offsets] in place; column `own` is a position's own value.

    A Glorot start draws each of n diagonals from U(-sqrt(3 / n), sqrt(3 / n)), so that a sum over
    them varies as the values do.
    """
    if init == "identity":
        weight.zero_()
        weight[..., own] = 1.0
    else:
        bound = (3.0 / weight.shape[-1]) ** 0.5
        nn.init.uniform_(weight, -bound, bound)
