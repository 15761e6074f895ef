"""Sinusoidal position embeddings of the first Transformer."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from suffice.utils.torch_compat import readable

CACHED_NUMBERS = 1 << 20  # tables up to 4 MiB in fp32 are cached


def sinusoidal(
    length: int,
    d_model: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the vectors that are added to x at positions 0..length - 1: [length, d_model].

    Feature 2i at position p is sin(p / 10000^(2i / d_model)), feature 2i + 1 its cosine. Angles
    are float64 whatever the dtype, and nothing is learned or stored, so any length works.

    Args:
        length: positions.
        d_model: features.
        device: device of the result.
        dtype: dtype of the result.

    Example:
        >>> sinusoidal(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. No difference.
    """
    device = torch.device(device)
    if not readable() or length * d_model > CACHED_NUMBERS:
        return sinusoidal_at(torch.arange(length, device=device), d_model, dtype=dtype)
    return _cached_table(length, d_model, device, dtype).clone()  # the caller may change it


def sinusoidal_at(positions: Tensor, d_model: int, *, dtype: torch.dtype) -> Tensor:
    """Return what is added to x at positions [...]: [..., d_model], as `sinusoidal`."""
    features = torch.arange(d_model, device=positions.device)
    steps = (features - features % 2).double() / d_model
    angles = positions.double()[..., None] * 10_000.0**-steps
    return torch.where(features % 2 == 0, angles.sin(), angles.cos()).to(dtype)


@lru_cache(maxsize=16)
def _cached_table(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # a cached tensor must serve training calls too
        return sinusoidal_at(torch.arange(length, device=device), d_model, dtype=dtype)
