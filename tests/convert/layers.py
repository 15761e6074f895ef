"""Small layers and what they read."""

from __future__ import annotations

import torch

from suffice import Attention, AttentionSpec
from suffice.convert.calibration import collect_moments
from suffice.patterns import Causal
from suffice.testing import drawn


def layer_of(seed=0, **fields):
    """Return a layer with drawn weights, of 16 features in 4 heads where nothing else is said."""
    spec = AttentionSpec(**{"d_model": 16, "num_heads": 4, "pattern": Causal()} | fields)
    return drawn(Attention(spec), seed=seed).eval()


def inputs(d_model=16, batches=4, seed=0):
    """Return batches [4, 12, M] whose features are correlated and have means."""
    draws = torch.Generator().manual_seed(seed)
    mixed = torch.randn(d_model, d_model, generator=draws) * torch.logspace(0, -2, d_model)[:, None]
    mean = torch.randn(d_model, generator=draws) / 3
    return [torch.randn(4, 12, d_model, generator=draws) @ mixed + mean for _ in range(batches)]


def moments_of(layer, batches=None):
    """Return the moments of a layer's inputs."""
    return collect_moments(
        layer, {"": layer}, inputs(layer.spec.d_model) if batches is None else batches
    )[""]
