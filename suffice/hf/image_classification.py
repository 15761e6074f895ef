"""The vision model for transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from suffice.hf.vit_config import SufficeViTConfig
from suffice.hf.weights import Weights


class SufficeForImageClassification(Weights, PreTrainedModel):
    """`suffice.models.ViT` for transformers.

    Args:
        config: the sizes and the attention.
    """

    config: SufficeViTConfig
    config_class = SufficeViTConfig
    base_model_prefix = "vit"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["Block"]

    def __init__(self, config: SufficeViTConfig) -> None:
        super().__init__(config)
        device = torch.get_default_device()
        with torch.device("cpu"):  # random features are drawn there
            self.vit = config.vit_config().build(config.attention_specs())
        self.vit.to(device)
        self.post_init()

    def started(self) -> nn.Module:
        """Return a model as it is before training, whose weights have the names of these."""
        vit = self.config.vit_config().build(self.config.attention_specs())
        return nn.ModuleDict({"vit": vit})

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Return logits [B, num_labels], and a loss where labels are given.

        Args:
            pixel_values: [B, num_channels, image_size, image_size].
            labels: int [B].
        """
        logits, loss = self.vit(pixel_values), None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
