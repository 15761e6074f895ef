"""The norms a block can be built with, by name."""

from __future__ import annotations

import torch
from torch import nn

from suffice.errors import unknown
from suffice.layers.rms_norm import RMSNorm

NORMALISATIONS = ("layer", "rms")


def normalisation(
    name: str,
    d_model: int,
    *,
    eps: float,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Return a norm over d_model features.

    Args:
        name: "layer" or "rms".
        d_model: features.
        eps: of the norm.
        bias: whether a layer norm has one; an RMS norm never has.
        device: where the parameters live.
        dtype: of the parameters.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    if name == "rms":
        return RMSNorm(d_model, eps=eps, device=device, dtype=dtype)
    return nn.LayerNorm(d_model, eps=eps, bias=bias, device=device, dtype=dtype)
