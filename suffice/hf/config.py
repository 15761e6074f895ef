"""The configuration of a language model for transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from suffice.errors import ConfigError, unknown
from suffice.memory import Memory
from suffice.models import LMConfig, ViTConfig
from suffice.patterns import And, Causal, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec


def stored(specs: Sequence[AttentionSpec]) -> list[dict[str, Any]]:
    """Return specs as plain data: one where all are equal, else one for each layer."""
    alike = all(one == specs[0] for one in specs)
    return [one.to_json() for one in (specs[:1] if alike else specs)]


def restored(data: Sequence[dict[str, Any]], depth: int) -> list[AttentionSpec]:
    """Return the spec of each layer from `stored`'s data.

    Raises:
        ConfigError: if there is neither one nor one for each layer.
    """
    if len(data) not in (1, depth):
        raise ConfigError(
            f"specs holds {len(data)} layers for num_hidden_layers={depth}; give one, or one for "
            "each."
        )
    specs = [AttentionSpec.from_json(one) for one in data]
    return specs * depth if len(specs) == 1 else specs


def of_mechanism(
    mechanism: str,
    *,
    d_model: int,
    num_heads: int,
    num_kv_heads: int | None,
    head_dim: int | None,
    depth: int,
    length: int,
    causal: bool,
) -> list[AttentionSpec]:
    """Return the specs of a published mechanism by name, as `suffice.schedule` does.

    Raises:
        ConfigError: for an unknown mechanism, or one that does not fit the sizes.
    """
    if mechanism not in PRESETS:
        raise unknown("mechanism", mechanism, PRESETS)
    options: dict[str, Any] = {"causal": causal} if causal else {}
    if takes_length(mechanism):
        options["length"] = length
    specs = schedule(mechanism, d_model, num_heads, depth=depth, **options)
    sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    given = {name: size for name, size in sizes.items() if size is not None}
    return [dataclasses.replace(one, **given) for one in specs]


def window_of(pattern: Pattern) -> int | None:
    """Return the size of a causal window; None for any other pattern.

    Example:
        >>> window_of(Window(8) & Causal()), window_of(Causal())
        (8, None)
    """
    parts = pattern.parts if isinstance(pattern, And) else ()
    sizes = [part.size for part in parts if isinstance(part, Window)]
    return sizes[0] if len(sizes) == 1 and len(parts) == 2 and Causal() in parts else None


def layer_type(spec: AttentionSpec) -> str:
    """Return which of transformers' names for a layer comes nearest.

    Example:
        >>> layer_type(AttentionSpec(d_model=8, num_heads=2, pattern=Window(4) & Causal()))
        'sliding_attention'
    """
    if not spec.kernel.weighs_pairs:
        return "linear_attention"
    return "full_attention" if window_of(spec.pattern) is None else "sliding_attention"


@strict
class SufficeConfig(PreTrainedConfig):
    """The sizes of `suffice.models.LM` and its attention, in transformers' words.

    The attention is given as a mechanism by name with `num_attention_heads`, or as `specs`; the
    file holds the specs, which say everything. `num_attention_heads`, `num_key_value_heads`,
    `head_dim`, `layer_types` and `sliding_window` repeat what other programs ask a file for.

    Args:
        vocab_size: token ids are below this.
        max_position_embeddings: the longest row, tokens.
        hidden_size: features, d_model.
        num_hidden_layers: blocks.
        intermediate_size: features inside a block's MLP.
        hidden_act: "gelu", "relu" or "swiglu".
        norm: "layer" or "rms".
        norm_eps: eps of the norms.
        positions: "learned", "sinusoidal" or "none".
        use_bias: biases on the MLPs and on layer norms.
        hidden_dropout: on embedded tokens, after the attention and after the MLP.
        initializer_range: standard deviation of weights before training.
        specs: JSON of an `AttentionSpec`, one for all layers or one for each.
        num_attention_heads: query heads.
        num_key_value_heads: key/value heads.
        head_dim: width of a head.
        layer_types: transformers' nearest name for each layer.
        sliding_window: of layers that are causal windows, where these are all alike.
        memory: JSON of what streaming keeps (`suffice.memory`); None = everything.
        use_cache: whether calls under torch.no_grad() return a cache unless asked.
        mechanism: instead of specs, a name of `suffice.presets`; "standard" if neither is given.

    Raises:
        ConfigError: if sizes contradict the specs, or any is not legal.
    """

    model_type: ClassVar[str] = "suffice"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 256
    max_position_embeddings: int = 256
    hidden_size: int = 128
    num_hidden_layers: int = 2
    intermediate_size: int = 512
    hidden_act: str = "gelu"
    norm: str = "layer"
    norm_eps: float = 1e-5
    positions: str = "learned"
    use_bias: bool = True
    hidden_dropout: float = 0.0
    initializer_range: float = 0.02
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

    def __post_init__(self, mechanism: str | None = None, **kwargs: Any) -> None:
        if self.specs is None:
            self.specs = stored(self._of_mechanism(mechanism or "standard"))
        elif mechanism is not None:
            raise ConfigError(
                f"mechanism={mechanism!r} beside specs, which say the attention; give one of them."
            )
        self._describe(self.attention_specs())
        _ = self.lm_config(), self.memory_value()  # what is not legal is told now
        super().__post_init__(**kwargs)

    def _of_mechanism(self, mechanism: str) -> list[AttentionSpec]:
        return of_mechanism(
            mechanism,
            d_model=self.hidden_size,
            num_heads=self.num_attention_heads or 4,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            depth=self.num_hidden_layers,
            length=self.max_position_embeddings,
            causal=True,
        )

    def _describe(self, specs: list[AttentionSpec]) -> None:
        """Say of the specs what other programs read; refuse what says otherwise."""
        first = specs[0]
        windows = {window_of(one.pattern) for one in specs} - {None}
        said = {
            "num_attention_heads": first.num_heads,
            "num_key_value_heads": first.kv_heads,
            "head_dim": first.head_width,
            "layer_types": [layer_type(one) for one in specs],
            "sliding_window": windows.pop() if len(windows) == 1 else None,
        }
        for name, value in said.items():
            given = getattr(self, name)
            if given not in (None, value):
                raise ConfigError(
                    f"{name}={given} where the specs say {value}; leave it out, or change the "
                    "specs."
                )
            setattr(self, name, value)

    def attention_specs(self) -> list[AttentionSpec]:
        """Return the spec of each layer."""
        return restored(self.specs, self.num_hidden_layers)

    def memory_value(self) -> Memory | None:
        """Return what streaming keeps; None = everything."""
        return None if self.memory is None else Memory.from_json(self.memory)

    def lm_config(self) -> LMConfig:
        """Return the same sizes for `suffice.models.LM`."""
        return LMConfig(
            vocabulary_size=self.vocab_size,
            length=self.max_position_embeddings,
            d_model=self.hidden_size,
            depth=self.num_hidden_layers,
            mlp_width=self.intermediate_size,
            activation=self.hidden_act,
            norm=self.norm,
            eps=self.norm_eps,
            positions=self.positions,
            bias=self.use_bias,
            tied=self.tie_word_embeddings,
            dropout=self.hidden_dropout,
            start=self.initializer_range,
        )

    @classmethod
    def of(cls, config: LMConfig, specs: list[AttentionSpec], **others: Any) -> SufficeConfig:
        """Return the configuration of a model of these sizes and specs.

        Args:
            config: the sizes.
            specs: the attention of each block.
            **others: further fields, such as eos_token_id.
        """
        return cls(
            vocab_size=config.vocabulary_size,
            max_position_embeddings=config.length,
            hidden_size=config.d_model,
            num_hidden_layers=config.depth,
            intermediate_size=config.mlp_width,
            hidden_act=config.activation,
            norm=config.norm,
            norm_eps=config.eps,
            positions=config.positions,
            use_bias=config.bias,
            tie_word_embeddings=config.tied,
            hidden_dropout=config.dropout,
            initializer_range=config.start,
            specs=stored(specs),
            **others,
        )

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to a file: every field of this class, defaults included."""
        own = {name: getattr(self, name) for name in SufficeConfig.__annotations__}
        fields = {k: v for k, v in own.items() if k not in ("model_type", *IGNORED)}
        return super().to_diff_dict() | fields


IGNORED = ("keys_to_ignore_at_inference",)


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
            self.specs = stored(
                of_mechanism(
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
        return restored(self.specs, self.num_hidden_layers)

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
