"""Rotary positions as transformers tells them, and its order of features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.positions import LinearScaling, Llama3Scaling, NTKScaling, Rope, YarnScaling


def rope_parameters(rope: Rope, head_dim: int) -> dict[str, Any]:
    """Return the entry rope_parameters.

    Args:
        rope: the positions; the layout is not told, as `halved` brings any into the usual one.
        head_dim: width of a head.

    Raises:
        ConfigError: for a scaling of one's own.
    """
    features, one = rope.features or head_dim, rope.scaling
    told: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    told["partial_rotary_factor"] = share_of(features, head_dim)
    if isinstance(one, LinearScaling):
        told |= {"rope_type": "linear", "factor": one.factor}
    elif isinstance(one, NTKScaling):
        told["rope_theta"] = rope.theta * one.factor ** (features / max(features - 2, 1))
    elif isinstance(one, Llama3Scaling):
        told |= {"rope_type": "llama3", "factor": one.factor}
        told |= {"low_freq_factor": one.low, "high_freq_factor": one.high}
        told["original_max_position_embeddings"] = one.length
    elif isinstance(one, YarnScaling):
        told |= {"rope_type": "yarn", "factor": one.factor, "truncate": one.truncate}
        told |= {"beta_fast": one.fast, "beta_slow": one.slow}
        told["attention_factor"] = one.amplitude
        told["original_max_position_embeddings"] = one.length
    elif one is not None:
        raise ConfigError(f"transformers knows no {one!r}; export the model to onnx or torch.")
    return told


def share_of(features: int, head_dim: int) -> float:
    """Return the share of a head's features that is rounded down to so many.

    Example:
        >>> share_of(2, 8), int(44 * (30 / 44)), int(44 * share_of(30, 44))
        (0.25, 29, 30)
    """
    share = features / head_dim
    return share if int(head_dim * share) == features else math.nextafter(share, 1.0)


def halved(part: Tensor, rope: Rope) -> Tensor:
    """Return maps [heads, inputs, D] of queries or keys with pairs (i, i + features/2).

    Example:
        >>> halved(torch.arange(4.0).view(1, 1, 4), Rope(layout="interleaved"))
        tensor([[[0., 2., 1., 3.]]])
    """
    if rope.layout == "half":
        return part
    features = rope.features or part.shape[-1]
    at = torch.arange(features).unflatten(0, (-1, 2)).T.flatten()
    return torch.cat([part[..., :features][..., at], part[..., features:]], dim=-1)
