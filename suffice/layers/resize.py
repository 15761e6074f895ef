"""Copies of a trained layer whose mixing is interpolated to another maximum length.

`extend` leaves old positions as they are and lets new ones mix nothing yet. `interpolate` resamples
the trained map as a smooth function of position, for input of another resolution.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, check_known
from suffice.layers.attention import Attention
from suffice.mixing import Alignment, BandedAlignment, LowRank, Mixing

MODES = {"linear": "bilinear", "cubic": "bicubic"}


def extend(layer: Attention, length: int) -> Attention:
    """Return a copy of a layer that takes input up to `length`, unchanged up to the old length.

    Alignment and BandedAlignment: a new position starts as its own value alone, and old positions
    do not read new ones. LowRank: new positions start with weight 0 in every sum, until trained;
    `interpolate` spreads the trained sums over all positions instead.

    Args:
        layer: a layer whose mixing has a longest input.
        length: the new one, tokens; at least the old one.

    Raises:
        ConfigError: if the mixing takes any length, or length is below the old one.

    Example:
        >>> from suffice import Attention, preset
        >>> extend(Attention(preset("super_attention", 8, 2, length=5)), 9).spec.max_length
        9
    """
    mixing = layer.spec.mixing
    if type(mixing) not in (Alignment, BandedAlignment, LowRank):
        raise ConfigError(
            "extend lengthens an Alignment, a BandedAlignment or a LowRank; this layer has "
            f"{mixing!r}, which takes any length."
        )
    if length < mixing.length:
        raise ConfigError(
            f"extend to length={length} would cut the {type(mixing).__name__} of length "
            f"{mixing.length}; shorter input needs no change: it uses a part of the map."
        )
    return _copy(layer, length, lambda name, old: _extended(name, old, mixing, length))


def interpolate(
    layer: Attention, length: int, *, grid: tuple[int, int] | None = None, mode: str = "linear"
) -> Attention:
    """Return a copy of a layer whose trained map is resampled to `length` positions.

    Let U [length, old] interpolate along the sequence and D [old, length] be its transpose with
    rows scaled to sum to 1, a local mean of new positions at each old one. Alignment becomes
    W_A' = U W_A D and b' = U b, LowRank becomes E' = E D: sums over a row stay what they were, so
    that values keep their scale. The old length itself gives the old layer.

    Args:
        layer: a layer with an Alignment or a LowRank, not causal.
        length: the new longest input, tokens, >= 1.
        grid: rows and columns of the image patches the map was trained on, row by row; they are
            interpolated in both directions, to a grid of the same shape. One more position than
            patches is a class token, the first, which is not interpolated. None: a sequence.
        mode: "linear" or "cubic", along each direction; both average when they shrink.

    Raises:
        ConfigError: if there is no such map, the layer is causal, the mode is unknown, or length
            or grid does not fit.

    Example:
        >>> from suffice import Attention, preset
        >>> layer = Attention(preset("super_attention", 8, 2, length=17))
        >>> interpolate(layer, 65, grid=(4, 4)).spec.max_length
        65

    Source: for grids, Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.2, where positions are
    interpolated so. Differs: a map has two sides.
    """
    mixing = layer.spec.mixing
    if type(mixing) not in (Alignment, LowRank):
        raise ConfigError(
            f"interpolate resamples an Alignment or a LowRank; this layer has {mixing!r}. A "
            "BandedAlignment counts distances in tokens: use extend."
        )
    if layer.spec.pattern.causal:
        raise ConfigError(
            "interpolate blends neighbouring positions, so a causal map would look ahead; "
            "use extend."
        )
    check_known("mode of interpolate", mode, MODES)
    if length < 1:
        raise ConfigError(f"interpolate to length={length}: give the new longest input, >= 1.")
    up = _line(mixing.length, length, mode)
    if grid is not None:
        up = _grid(mixing.length, length, grid, mode)
    down = up.T / up.sum(dim=0)[:, None]
    return _copy(layer, length, lambda name, old: _resampled(name, old, up, down))


def _copy(layer: Attention, length: int, resize: Callable[[str, Tensor], Tensor]) -> Attention:
    other = copy.deepcopy(layer)
    other.spec = replace(layer.spec, mixing=replace(layer.spec.mixing, length=length))
    for name, old in layer.mixing.named_parameters():
        new = resize(name, old.detach()).to(old.dtype).contiguous()
        setattr(other.mixing, name, nn.Parameter(new, old.requires_grad))
    return other


def _extended(name: str, old: Tensor, mixing: Mixing, length: int) -> Tensor:
    new = length - mixing.length
    if name != "weight":
        return F.pad(old, (0, new))  # b, E and F: zeros
    if type(mixing) is Alignment:
        weight = F.pad(old, (0, new, 0, new))
        weight.diagonal(dim1=-2, dim2=-1)[:, mixing.length :] = 1.0
        return weight
    diagonal = mixing.width - 1
    weight = F.pad(old, (0, 0, 0, new))
    weight[:, mixing.length :, diagonal] = 1.0
    rows = torch.arange(mixing.length, device=old.device)[:, None]
    columns = rows + torch.arange(-diagonal, old.shape[-1] - diagonal, device=old.device)
    weight[:, : mixing.length].masked_fill_(columns >= mixing.length, 0.0)
    return weight


def _resampled(name: str, old: Tensor, up: Tensor, down: Tensor) -> Tensor:
    up, down, exact = up.to(old.device), down.to(old.device), old.double()
    if name == "weight":
        return up @ exact @ down
    return exact @ up.T if name == "bias" else exact @ down


def _line(old: int, new: int, mode: str) -> Tensor:
    """Return the map from `old` samples to `new` ones: float64 [new, old], rows sum to 1."""
    samples = torch.eye(old, dtype=torch.float64)[:, None, None]
    size = (1, new)
    return F.interpolate(samples, size=size, mode=MODES[mode], antialias=True)[:, 0, 0].T


def _grid(old: int, new: int, grid: tuple[int, int], mode: str) -> Tensor:
    rows, columns = grid
    tokens = old - rows * columns
    sides = 0, 0
    if min(grid) > 0 and tokens in (0, 1) and new > tokens:
        scale = math.sqrt((new - tokens) / (rows * columns))
        sides = round(rows * scale), round(columns * scale)
    fits = sides[0] * sides[1] + tokens == new and sides[0] * columns == rows * sides[1]
    if not fits or min(sides) < 1:
        raise ConfigError(
            f"grid={grid} of {old} positions cannot become {new}: the old and the new patches must "
            "fill grids of one shape, with or without one class token."
        )
    patches = torch.kron(_line(rows, sides[0], mode), _line(columns, sides[1], mode))
    return torch.block_diag(*[torch.ones(1, 1).double()] * tokens, patches)
