"""Parts of blocks and models: dropout, norms, initialisation, sinusoidal positions."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, check_known
from suffice.ops.rms_norm import rms_norm
from suffice.utils.torch_compat import readable

CACHED_NUMBERS = 1 << 20  # of a sinusoidal table: up to 4 MiB in fp32 are cached


class Dropout(nn.Module):
    """Zero each element with probability `p` while training and scale the others by 1 / (1 - p).

    The mask is drawn for the whole global batch and this process takes its own rows, so one
    process and many draw the same mask from the same seed. Four elements share one draw of 64
    bits, 16 each, because torch draws one element at a time on a CPU. So the probability is the
    multiple of 2^-16 nearest to `p` (at least one), and the scale is its.

    Args:
        p: probability of zeroing an element, 0 <= p < 1.

    Shapes:
        x: [B, ...] -> [B, ...]

    Raises:
        ConfigError: if p is outside [0, 1).
    """

    rows: tuple[int, int] | None = None  # (offset, total) of this process in the global batch

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout={p} is not a probability below 1; give 0 <= dropout < 1.")
        self.p = p
        self.zeroed = max(1, min(round(p * 2**16), 2**16 - 1))  # of the 2^16 values of a draw

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements dropped while training, x itself otherwise."""
        if not self.training or self.p == 0.0:
            return x
        offset, total = self.rows or (0, x.shape[0])
        shape = (total, *x.shape[1:])
        size = math.prod(shape)
        draws = torch.randint(-(2**63), 2**63 - 1, (-(-size // 4),), device=x.device)
        draws = draws.view(torch.int16)[:size].view(shape)
        mask = torch.empty(shape, dtype=x.dtype, device=x.device)
        torch.ge(draws, self.zeroed - 2**15, out=mask)
        mask.mul_(2**16 / (2**16 - self.zeroed))
        return x * mask[offset : offset + x.shape[0]]

    def extra_repr(self) -> str:
        """Show the probability in the printed module."""
        return f"p={self.p}"


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * w over the last axis; no mean is subtracted, no bias added.

    Inside it is fp32 or better whatever the dtype of x, and rounds once.

    Args:
        d_model: features.
        eps: number that keeps a row of zeros finite.
        device: device of w.
        dtype: dtype of w.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Example:
        >>> RMSNorm(2)(torch.tensor([1.0, -7.0])).detach()
        tensor([ 0.2000, -1.4000])

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Differs: eps.
    """

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return the norm of each position, times silu(gate) [..., d_model] if one is given."""
        return rms_norm(x, self.weight, self.eps, gate)

    def extra_repr(self) -> str:
        """Show the sizes in the printed module."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


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
    """Return a norm over d_model features: "layer", with or without a bias, or "rms"."""
    check_known("normalisation", name, NORMALISATIONS)
    if name == "rms":
        return RMSNorm(d_model, eps=eps, device=device, dtype=dtype)
    return nn.LayerNorm(d_model, eps=eps, bias=bias, device=device, dtype=dtype)


def init_glorot(*linears: nn.Linear) -> None:
    """Draw the weights of linear maps Glorot-uniform and set their biases to 0."""
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


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
