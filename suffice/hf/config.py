"""The configuration of a language model for transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from suffice.errors import ConfigError
from suffice.hf import specs as of_specs
from suffice.memory import Memory
from suffice.models import LMConfig
from suffice.spec import AttentionSpec


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
            self.specs = of_specs.stored(self._of_mechanism(mechanism or "standard"))
        elif mechanism is not None:
            raise ConfigError(
                f"mechanism={mechanism!r} beside specs, which say the attention; give one of them."
            )
        self._describe(self.attention_specs())
        _ = self.lm_config(), self.memory_value()  # what is not legal is told now
        super().__post_init__(**kwargs)

    def _of_mechanism(self, mechanism: str) -> list[AttentionSpec]:
        return of_specs.of_mechanism(
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
        windows = {of_specs.window_of(one.pattern) for one in specs} - {None}
        said = {
            "num_attention_heads": first.num_heads,
            "num_key_value_heads": first.kv_heads,
            "head_dim": first.head_width,
            "layer_types": [of_specs.layer_type(one) for one in specs],
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
        return of_specs.restored(self.specs, self.num_hidden_layers)

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
            specs=of_specs.stored(specs),
            **others,
        )

    def to_diff_dict(self) -> dict[str, Any]:
        """Return what is written to a file: every field of this class, defaults included."""
        own = {name: getattr(self, name) for name in SufficeConfig.__annotations__}
        fields = {k: v for k, v in own.items() if k not in ("model_type", *IGNORED)}
        return super().to_diff_dict() | fields


IGNORED = ("keys_to_ignore_at_inference",)
