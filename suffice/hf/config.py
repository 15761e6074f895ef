"""The configurations of a language model and a vision Transformer for transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from suffice.errors import ConfigError, check_known
from suffice.hf.cache import CACHE_NAMES
from suffice.memory import Memory
from suffice.models import LMConfig, ViT, ViTConfig
from suffice.models.architectures.layer_types import sliding_window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec

LM_FIELDS = {
    "vocab_size": "vocabulary_size",
    "max_position_embeddings": "length",
    "hidden_size": "d_model",
    "num_hidden_layers": "depth",
    "intermediate_size": "mlp_width",
    "hidden_act": "activation",
    "norm": "norm",
    "residual": "residual",
    "norm_eps": "eps",
    "positions": "positions",
    "use_bias": "bias",
    "tie_word_embeddings": "tied",
    "head_bias": "head_bias",
    "hidden_dropout": "dropout",
    "logit_cap": "logit_cap",
    "initializer_range": "start",
    "experts": "experts",
}
"""Fields of `LMConfig` by their names in `SufficeConfig`."""

VIT_FIELDS = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_labels": "num_classes",
    "num_channels": "channels",
    "hidden_size": "d_model",
    "num_hidden_layers": "depth",
    "intermediate_size": "mlp_width",
    "pooling": "pooling",
    "hidden_dropout": "dropout",
    "head_dropout": "head_dropout",
    "block_norm": "norm",
    "norm_eps": "eps",
    "positions": "positions",
}
"""Fields of `ViTConfig` by their names in `SufficeViTConfig`, but for head_widths."""


@strict
class SufficeConfig(PreTrainedConfig):
    """The sizes of `suffice.models.LM` and its attention, in transformers' words.

    The attention is given as a mechanism by name with `num_attention_heads`, or as `specs`; the
    file holds the specs. `num_attention_heads`, `num_key_value_heads`, `head_dim`, `layer_types`
    and `sliding_window` repeat a part of them for other programs.

    Args:
        vocab_size: token ids are below this.
        max_position_embeddings: the longest row, tokens.
        hidden_size: features, d_model.
        num_hidden_layers: blocks.
        intermediate_size: features inside a block's MLP.
        hidden_act: function of the MLPs, see `LMConfig.activation`.
        norm: "layer" or "rms".
        residual: place of the norms, see `LMConfig.residual`.
        norm_eps: epsilon of the norms.
        positions: "learned", "sinusoidal" or "none".
        use_bias: biases on the MLPs and on layer norms.
        head_bias: bias of the head, see `LMConfig.head_bias`.
        hidden_dropout: probability, on embedded tokens, after the attention and after the MLP.
        logit_cap: bound of the logits, see `LMConfig.logit_cap`.
        initializer_range: standard deviation of weights before training.
        experts: JSON of `LMConfig.experts`; None: no mixture of experts.
        specs: JSON of an `AttentionSpec`, one for all layers or one for each.
        num_attention_heads: query heads.
        num_key_value_heads: key/value heads.
        head_dim: width of a head.
        layer_types: transformers' nearest name for each layer.
        sliding_window: window of the layers with causal windows, where these are all alike.
        memory: JSON of the KV cache's memory (`suffice.memory`); None keeps every position.
        use_cache: whether calls under torch.no_grad() return a cache by default.
        mechanism: instead of specs, a name of `suffice.presets`; "standard" if neither is given.

    Raises:
        ConfigError: if sizes contradict the specs, or any is not legal.
    """

    model_type: ClassVar[str] = "suffice"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*CACHE_NAMES]

    vocab_size: int = 256
    max_position_embeddings: int = 256
    hidden_size: int = 128
    num_hidden_layers: int = 2
    intermediate_size: int = 512
    hidden_act: str = "gelu"
    norm: str = "layer"
    residual: str = "pre"
    norm_eps: float = 1e-5
    positions: str = "learned"
    use_bias: bool = True
    head_bias: bool = False
    hidden_dropout: float = 0.0
    logit_cap: float | None = None
    initializer_range: float = 0.02
    experts: dict[str, Any] | None = None
    specs: list[dict[str, Any]] | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    memory: dict[str, Any] | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    if TYPE_CHECKING:
        mechanism: InitVar[str | None] = None

    def __post_init__(self, mechanism: str | None = None, **kwargs: Any) -> None:
        length = self.max_position_embeddings
        self.specs = _stored_specs(self, mechanism, length=length, causal=True)
        self._set_derived(self.attention_specs())
        _ = self.lm_config(), self.memory_value()  # raise for values that are not legal
        super().__post_init__(**kwargs)

    def _set_derived(self, specs: list[AttentionSpec]) -> None:
        """Set the fields that repeat the specs; raise if one contradicts them."""
        windows = {sliding_window(spec) for spec in specs} - {None}
        derived = {
            "num_attention_heads": specs[0].num_heads,
            "num_key_value_heads": specs[0].kv_heads,
            "head_dim": specs[0].head_width,
            "layer_types": [_layer_type(spec) for spec in specs],
            "sliding_window": windows.pop() if len(windows) == 1 else None,
        }
        for name, value in derived.items():
            if getattr(self, name) not in (None, value):
                raise ConfigError(
                    f"{name}={getattr(self, name)} where the specs say {value}; leave it out, or "
                    "change the specs."
                )
            setattr(self, name, value)

    def attention_specs(self) -> list[AttentionSpec]:
        """Return the spec of each layer."""
        return _specs_from_json(self.specs, self.num_hidden_layers)

    def memory_value(self) -> Memory | None:
        """Return the memory of the KV cache; None keeps every position."""
        return None if self.memory is None else Memory.from_json(self.memory)

    def lm_config(self) -> LMConfig:
        """Return the same sizes for `suffice.models.LM`."""
        return LMConfig.from_json(
            {ours: getattr(self, theirs) for theirs, ours in LM_FIELDS.items()}
        )

    @classmethod
    def of(cls, config: LMConfig, specs: list[AttentionSpec], **others: Any) -> SufficeConfig:
        """Return the configuration of a model; others are further fields, such as eos_token_id."""
        plain = config.to_json()
        sizes = {theirs: plain[ours] for theirs, ours in LM_FIELDS.items()}
        return cls(**sizes, specs=_specs_to_json(specs), **others)

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to a file: every field of this class, defaults included."""
        return super().to_diff_dict() | _own_fields(self, SufficeConfig)


@strict
class SufficeViTConfig(PreTrainedConfig):
    """The sizes of `suffice.models.ViT` and its attention, in transformers' words.

    Args:
        image_size: side of the square input, pixels.
        patch_size: side of a patch, pixels.
        num_channels: channels of the input.
        hidden_size: features, d_model.
        num_hidden_layers: blocks.
        intermediate_size: features inside a block's MLP.
        pooling: "mean", "flatten", "class_token" or "distilled".
        head_widths: hidden layers of the head.
        hidden_dropout: probability, in the blocks.
        head_dropout: probability, before and inside the head.
        block_norm: "pre" or "post".
        norm_eps: epsilon of the norms.
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
        length = self.vit_config().length  # raises for sizes that are not legal
        self.specs = _stored_specs(self, mechanism, length=length, causal=False)
        self.num_attention_heads = self.attention_specs()[0].num_heads

    def attention_specs(self) -> list[AttentionSpec]:
        """Return the spec of each layer."""
        return _specs_from_json(self.specs, self.num_hidden_layers)

    def vit_config(self) -> ViTConfig:
        """Return the same sizes for `suffice.models.ViT`."""
        sizes = {ours: getattr(self, theirs) for theirs, ours in VIT_FIELDS.items()}
        return ViTConfig(**sizes, head_widths=tuple(self.head_widths or ()))

    def build(self) -> ViT:
        """Return an untrained network."""
        return self.vit_config().build(self.attention_specs())

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to a file: every field of this class, defaults included."""
        return super().to_diff_dict() | _own_fields(self, SufficeViTConfig)


def _layer_type(spec: AttentionSpec) -> str:
    if spec.lane != "pairs":
        return "linear_attention"
    return "full_attention" if sliding_window(spec) is None else "sliding_attention"


def _stored_specs(
    config: SufficeConfig | SufficeViTConfig, mechanism: str | None, *, length: int, causal: bool
) -> list[dict[str, Any]]:
    if config.specs is not None:
        if mechanism is not None:
            raise ConfigError(
                f"mechanism={mechanism!r} and specs both define the attention; give only one."
            )
        return config.specs
    mechanism = mechanism or "standard"
    check_known("mechanism", mechanism, PRESETS)
    specs = schedule(
        mechanism,
        config.hidden_size,
        config.num_attention_heads or 4,
        depth=config.num_hidden_layers,
        **({"causal": True} if causal else {}),
        **({"length": length} if takes_length(mechanism) else {}),
    )
    sizes = {
        "num_kv_heads": getattr(config, "num_key_value_heads", None),
        "head_dim": getattr(config, "head_dim", None),
    }
    sizes = {name: size for name, size in sizes.items() if size is not None}
    return _specs_to_json([dataclasses.replace(spec, **sizes) for spec in specs])


def _specs_to_json(specs: Sequence[AttentionSpec]) -> list[dict[str, Any]]:
    equal = all(spec == specs[0] for spec in specs)
    return [spec.to_json() for spec in (specs[:1] if equal else specs)]


def _specs_from_json(data: Sequence[dict[str, Any]], depth: int) -> list[AttentionSpec]:
    if len(data) not in (1, depth):
        raise ConfigError(
            f"specs holds {len(data)} layers for num_hidden_layers={depth}; give one, or one for "
            "each."
        )
    specs = [AttentionSpec.from_json(spec) for spec in data]
    return specs * depth if len(specs) == 1 else specs


def _own_fields(config: PreTrainedConfig, cls: type) -> dict[str, Any]:
    skipped = ("model_type", "keys_to_ignore_at_inference")
    return {name: getattr(config, name) for name in cls.__annotations__ if name not in skipped}
