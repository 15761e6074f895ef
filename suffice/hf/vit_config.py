"""The configuration of a vision model for transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from suffice.errors import ConfigError
from suffice.hf import specs as of_specs
from suffice.models import ViTConfig
from suffice.spec import AttentionSpec


@strict
class SufficeViTConfig(PreTrainedConfig):
    """The sizes of `suffice.models.ViT` and its attention, in transformers' words.

    Args:
        image_size: side of the square input, pixels.
        patch_size: side of a patch, pixels.
        num_channels: of the input.
        hidden_size: features, d_model.
        num_hidden_layers: blocks.
        intermediate_size: features inside a block's MLP.
        pooling: "mean", "flatten" or "class_token".
        head_widths: hidden layers of the head.
        hidden_dropout: in the blocks.
        head_dropout: before and inside the head.
        block_norm: "pre" or "post".
        norm_eps: eps of the norms.
        positions: "learned", "sinusoidal" or "none".
        specs: JSON of an `AttentionSpec`, one for all layers or one for each.
        num_attention_heads: query heads, with a mechanism.
        mechanism: instead of specs, a name of `suffice.presets`; "standard" if neither is given.

    Raises:
        ConfigError: if mechanism and specs are given, or any size is not legal.
    """

    model_type: ClassVar[str] = "suffice_vit"

    image_size: int = 28
    patch_size: int = 4
    num_channels: int = 1
    hidden_size: int = 64
    num_hidden_layers: int = 2
    intermediate_size: int = 128
    pooling: str = "mean"
    head_widths: list[int] | None = None
    hidden_dropout: float = 0.0
    head_dropout: float = 0.0
    block_norm: str = "pre"
    norm_eps: float = 1e-6
    positions: str = "learned"
    specs: list[dict[str, Any]] | None = None
    num_attention_heads: int | None = None

    def __post_init__(self, mechanism: str | None = None, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.specs is not None and mechanism is not None:
            raise ConfigError(
                f"mechanism={mechanism!r} beside specs, which say the attention; give one of them."
            )
        if self.specs is None:
            self.specs = of_specs.stored(
                of_specs.of_mechanism(
                    mechanism or "standard",
                    d_model=self.hidden_size,
                    num_heads=self.num_attention_heads or 4,
                    num_kv_heads=None,
                    head_dim=None,
                    depth=self.num_hidden_layers,
                    length=self.vit_config().length,
                    causal=False,
                )
            )
        self.num_attention_heads = self.attention_specs()[0].num_heads
        self.vit_config()

    def attention_specs(self) -> list[AttentionSpec]:
        """Return the spec of each layer."""
        return of_specs.restored(self.specs, self.num_hidden_layers)

    def vit_config(self) -> ViTConfig:
        """Return the same sizes for `suffice.models.ViT`."""
        return ViTConfig(
            image_size=self.image_size,
            patch_size=self.patch_size,
            num_classes=self.num_labels,
            d_model=self.hidden_size,
            depth=self.num_hidden_layers,
            mlp_width=self.intermediate_size,
            channels=self.num_channels,
            pooling=self.pooling,
            head_widths=tuple(self.head_widths or ()),
            dropout=self.hidden_dropout,
            head_dropout=self.head_dropout,
            norm=self.block_norm,
            eps=self.norm_eps,
            positions=self.positions,
        )

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to a file: every field of this class, defaults included."""
        fields = [name for name in SufficeViTConfig.__annotations__ if name != "model_type"]
        return super().to_diff_dict() | {name: getattr(self, name) for name in fields}
