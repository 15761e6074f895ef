"""Models of many compositions that share the weights they have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suffice.advise.base import Base, resized
from suffice.advise.candidates import Candidate
from suffice.models import ViTConfig
from suffice.models.undrawn import Undrawn
from suffice.quantise import quantise
from suffice.recipes.attention import Sizes, built


class Models:
    """Models with random weights, each made when it is asked for and then kept.

    Tensors of equal names and shapes are one tensor: embeddings and MLPs are there once, whatever
    the attention. Packed weights are each model's own.

    Args:
        base: the sizes.
        device: where the weights lie.
    """

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.shared: dict[tuple[str, torch.Size], Tensor] = {}
        self.made: dict[object, Any] = {}
        self.generator = torch.Generator().manual_seed(0)

    def of(self, one: Candidate, length: int) -> Any:
        """Return the model of a candidate for inputs of a length, ready to evaluate."""
        config = self.base.config
        if isinstance(config, ViTConfig):  # the others read shorter inputs as they are
            config = resized(config, length)
        key = one.same_as, config
        if key not in self.made:
            self.made[key] = self._make(one, config)
        return self.made[key]

    def _make(self, one: Candidate, config: Sizes) -> nn.Module:
        with torch.device("meta"), Undrawn():
            model: nn.Module = built(config, list(one.specs))
        weights = {name: self._tensor(name, like) for name, like in model.state_dict().items()}
        model.load_state_dict(weights, assign=True)
        model.requires_grad_(False).eval()
        if one.composition.weights is not None:
            quantise(model, bits=one.composition.weights)
        return model

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        """Return the tensor of a name and shape; maps keep the size of what they are given."""
        key = name, like.shape
        if key not in self.shared:
            drawn = torch.zeros(like.shape, dtype=like.dtype, device="cpu")
            if like.dim() > 1:
                drawn.normal_(std=like.shape[-1] ** -0.5, generator=self.generator)
            elif name.endswith("weight"):  # of a norm
                drawn.fill_(1.0)
            self.shared[key] = drawn.to(self.device)
        return self.shared[key]
