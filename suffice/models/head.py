"""What turns a model's features into logits."""

from __future__ import annotations

from torch import Tensor, nn

from suffice.layers import Dropout
from suffice.layers.mlp import ACTIVATIONS
from suffice.ops.linear import Linear


def head(
    features: int, widths: tuple[int, ...], num_classes: int, activation: str, dropout: float
) -> nn.Sequential:
    """Return hidden layers of these widths, each with activation and dropout, and the logits map.

    Weights are Glorot-uniform, biases zero.
    """
    layers: list[nn.Module] = []
    for width in widths:
        layers += [_linear(features, width), ACTIVATIONS[activation](), Dropout(dropout)]
        features = width
    return nn.Sequential(*layers, _linear(features, num_classes))


def mean_of_real(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean [B, M] over real tokens of x [B, T, M]; 0 where a row has none."""
    if valid is None:
        return x.mean(dim=1)
    count = valid.sum(dim=1, keepdim=True).clamp(min=1)
    return x.masked_fill(~valid[..., None], 0.0).sum(dim=1) / count


def _linear(features: int, outputs: int) -> Linear:
    linear = Linear(features, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
