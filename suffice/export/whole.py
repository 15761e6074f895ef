"""A model that reads an input at once as a function of flat tensors.

Letters: B batch, T tokens, C channels, S image side in pixels, N classes.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.export.decoder import LOGITS, TOKENS, VALID, Port
from suffice.export.plain import Plain
from suffice.models.classifier import Classifier
from suffice.models.vit import ViT

IMAGES = "images"


class Whole(nn.Module):
    """A Classifier or ViT with plain attention.

    Args:
        model: in evaluation and float32; it is copied.

    Shapes:
        tokens: int [B, T] and valid: bool [B, T], or images: [B, C, S, S] -> logits [B, N]

    Raises:
        ConfigError: if no graph can hold a layer.
    """

    def __init__(self, model: Classifier | ViT) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        for number, block in enumerate(self.model.blocks):
            try:
                block.attention = Plain(block.attention)
            except ConfigError as error:
                raise ConfigError(f"layer {number}: {error}") from error
        self.pictures = isinstance(model, ViT)
        self.masks = not self.pictures and not model.config.reads_padding

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the logits."""
        return self.model(x, valid)

    def inputs(self) -> list[Port]:
        """Return the ports of the inputs, in order."""
        config = self.model.config
        if self.pictures:
            side = config.image_size
            shape = ("batch", config.channels, side, side)
            holds = "pixels, normalised as in training"
            return [Port(name=IMAGES, dtype="float32", shape=shape, holds=holds)]
        shape = ("batch", "length")
        ports = [Port(name=TOKENS, dtype="int64", shape=shape, holds="ids")]
        if self.masks:
            ports.append(Port(name=VALID, dtype="bool", shape=shape, holds="True = a real token"))
        return ports

    def outputs(self) -> list[Port]:
        """Return the ports of the outputs, in order."""
        shape = ("batch", self.model.config.num_classes)
        return [Port(name=LOGITS, dtype="float32", shape=shape, holds="of the classes")]
