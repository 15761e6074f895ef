"""Classifiers for transformers; folders that `suffice compare` wrote load as they are."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from suffice.errors import ConfigError
from suffice.hf.config import SufficeViTConfig
from suffice.hf.model import Weights
from suffice.models.kinds import KINDS, Sizes, build_model
from suffice.spec import AttentionSpec


@strict
class SufficeClassifierConfig(PreTrainedConfig):
    """The config.json of a classifier's folder, see `suffice.models.folder`.

    Args:
        kind: "text classifier" or "image classifier".
        model: the sizes, as `ClassifierConfig` or `ViTConfig` writes them.
        specs: JSON of the `AttentionSpec` of each layer.
        classes: names of the classes, which become id2label.

    Raises:
        ConfigError: if these describe no model.
    """

    model_type: ClassVar[str] = "suffice_classifier"

    kind: str = "text classifier"
    model: dict[str, Any] | None = None
    specs: list[dict[str, Any]] | None = None
    classes: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.classes is not None:
            kwargs["id2label"] = dict(enumerate(self.classes))
            kwargs["label2id"] = {name: number for number, name in enumerate(self.classes)}
        super().__post_init__(**kwargs)

    def sizes(self) -> Sizes:
        """Return the sizes of the network."""
        if self.model is None or self.kind not in KINDS:
            raise ConfigError(f"a {self.kind} without sizes; give a folder of suffice compare.")
        return KINDS[self.kind].from_json(self.model)  # type: ignore[return-value]

    def build(self) -> nn.Module:
        """Return an untrained network."""
        return build_model(self.sizes(), [AttentionSpec.from_json(s) for s in self.specs or ()])


class _Classifier(Weights, PreTrainedModel):
    config: SufficeClassifierConfig | SufficeViTConfig
    config_class: type[PreTrainedConfig] = SufficeClassifierConfig
    base_model_prefix = "network"
    _no_split_modules = ["Block"]

    def __init__(self, config: SufficeClassifierConfig | SufficeViTConfig) -> None:
        super().__init__(config)
        device = torch.get_default_device()
        with torch.device("cpu"):  # random features are drawn there
            network = config.build()
        self.add_module(self.base_model_prefix, network.to(device))
        self.post_init()

    def fresh_model(self) -> nn.Module:
        """Return an untrained model with the same names of weights."""
        return nn.ModuleDict({self.base_model_prefix: self.config.build()})


def _loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    return None if labels is None else nn.functional.cross_entropy(logits, labels)


class SufficeTextClassifier(_Classifier):
    """`suffice.models.Classifier` for transformers.

    Args:
        config: configuration of its folder.
    """

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return logits [B, num_labels], and a loss if labels are given.

        Args:
            input_ids: [B, T], see `suffice.models.Classifier.last_of_row`.
            attention_mask: [B, T], 1 = a real token; None takes all for real.
            labels: int [B].
        """
        sizes = self.base_model.config
        if sizes.reads_padding:  # rows of training are padded in front, and read whole
            input_ids = nn.functional.pad(input_ids, (max(0, sizes.length - input_ids.shape[1]), 0))
            attention_mask = None
        valid = None if attention_mask is None else attention_mask != 0
        network = self.base_model
        logits = network(network.last_of_row(input_ids), network.last_of_row(valid))
        return SequenceClassifierOutput(loss=_loss(logits, labels), logits=logits)


class SufficeImageClassifier(_Classifier):
    """`suffice.models.ViT` for transformers.

    Args:
        config: configuration of its folder.
    """

    main_input_name = "pixel_values"
    input_modalities = ("image",)

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Return logits [B, num_labels], and a loss if labels are given.

        Args:
            pixel_values: [B, C, S, S]; a model of grey images takes coloured ones, too, and reads
                their mean.
            labels: int [B].
        """
        if self.base_model.config.channels == 1:
            pixel_values = pixel_values.mean(dim=1, keepdim=True)
        logits = self.base_model(pixel_values)
        return ImageClassifierOutput(loss=_loss(logits, labels), logits=logits)


class SufficeForImageClassification(SufficeImageClassifier):
    """`suffice.models.ViT` of the sizes and the mechanism of a configuration.

    Args:
        config: the sizes and the attention.
    """

    config_class = SufficeViTConfig
    base_model_prefix = "vit"
