"""Attention layers that an engine of transformers can compute, and patterns for stock models."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.masking_utils import and_masks, causal_mask_function, sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from suffice.errors import ConfigError
from suffice.layers import Attention, Block
from suffice.layers.inputs import Inputs
from suffice.layers.positions import UNMASKED
from suffice.mixing import RowLayout
from suffice.models.architectures.layer_types import sliding_window
from suffice.ops.attend import attend
from suffice.patterns import Pattern
from suffice.spec import AttentionSpec
from suffice.spec.lowering import not_dense

OWN = "eager"  # transformers' name for attention that a model computes itself


def check_servable(spec: AttentionSpec) -> None:
    """Raise ConfigError unless an engine such as vLLM can compute the attention of a layer.

    Engines cache keys and values themselves and compute softmax(q k) v, causal or in a causal
    window, over heads of one width.
    """
    if axis := not_dense(spec):
        missing = [axis]
    else:
        lowered: Any = spec.lower()
        optional = {"mixing": lowered.mixing, "past": lowered.infini, "position": lowered.alibi}
        missing = [axis for axis, value in optional.items() if value is not None]
        band = lowered.band
        if band is None or band.after != 0 or band.sinks:
            missing.append("pattern")
    if missing:
        parts = ", ".join(f"{axis}={getattr(spec, axis)!r}" for axis in missing)
        raise ConfigError(
            f"an engine that computes attention itself cannot serve {parts}; it has a "
            "softmax over Causal() or Window(n) & Causal(). Use the model's own attention."
        )


class SufficeAttention(Attention):
    """`Attention` whose queries, keys and values an engine can take over."""

    is_causal = True

    def __init__(
        self, config: Any, spec: AttentionSpec, layer_idx: int, *, device: torch.device | str
    ) -> None:
        super().__init__(spec, device=device)
        self.config, self.layer_idx = config, layer_idx
        self.num_key_value_groups = spec.num_heads // spec.kv_heads
        self.scaling = spec.score_scale

    def forward(self, x: Tensor, *, engine: dict[str, Any] | None = None, **where: Any) -> Tensor:
        """Return the attended x; engine: its arguments, position_ids [B, T] among them."""
        if engine is None:
            return super().forward(x, **where)
        rows = RowLayout(positions=engine["position_ids"])
        q, cached, _ = self.encode(Inputs(x=x, source=x, masks=UNMASKED, rows=rows))
        k, v = self.spec.encoder.expand(self, cached)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        drop = self.spec.dropout if self.training else 0.0
        out, _ = attend(
            self,
            q,
            k,
            v,
            scaling=self.scaling,
            dropout=drop,
            sliding_window=sliding_window(self.spec),
            **engine,
        )
        out = out.reshape(*x.shape[:2], self.spec.num_heads, -1).transpose(1, 2)
        return self.spec.combine.output(self, out, x, cached)


class SufficeBlock(GradientCheckpointingLayer, Block):
    """A block with the norms and the MLP of another one, and its own attention."""

    def __init__(self, block: Block, attention: SufficeAttention) -> None:
        nn.Module.__init__(self)  # the parts are those of `block`
        for name, part in block.named_children():
            self.add_module(name, part)
        self.attention = attention
        self.norm = block.norm


PREFIX, KEY = "suffice_", "attn_implementation"
DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
SPECIAL = ("sdpa", "flash", "flex", "eager", "paged")  # names that transformers treats apart


def register_pattern(name: str, pattern: Pattern) -> None:
    """Register a pattern as an attention implementation of every model of transformers.

    The attention function and the mask function are registered as a pair. A stock model then
    takes `attn_implementation=name`: the pattern restricts its own mask further. Positions count
    real tokens, so padding may be on the left. A mask of four dimensions given by a caller
    replaces all this, as everywhere in transformers. A model that is saved names the pattern in its
    config.json, and loads where it has been registered under this name; elsewhere transformers
    refuses the name.

    Args:
        name: begins with "suffice_".
        pattern: keys that each query may see.

    Raises:
        ConfigError: for a name that transformers would treat in another way, or no pattern.
    """
    if not name.startswith(PREFIX) or any(word in name for word in SPECIAL):
        raise ConfigError(
            f"name={name!r}: give one that begins with {PREFIX!r} and holds none of "
            f"{', '.join(SPECIAL)}, which transformers treats specially."
        )
    if not isinstance(pattern, Pattern):
        raise ConfigError(
            f"pattern={pattern!r} is not a pattern; give an instance such as "
            "Window(256) & Causal()."
        )
    AttentionInterface.register(name, _attention(pattern))
    AttentionMaskInterface.register(name, _mask(pattern))
    if PreTrainedConfig.to_dict is not _to_dict:
        PreTrainedConfig.to_dict = _to_dict


_plain_to_dict = PreTrainedConfig.to_dict


@wraps(_plain_to_dict)
def _to_dict(config: PreTrainedConfig) -> dict[str, Any]:
    """Name a pattern, which transformers leaves out: weights were trained with it."""
    entries, name = _plain_to_dict(config), config._attn_implementation
    return entries | {KEY: name} if str(name).startswith(PREFIX) else entries


def _mask(pattern: Pattern) -> Callable[..., Tensor | None]:
    def mask(
        *,
        q_length: int,
        kv_length: int,
        q_offset: int = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Tensor] = causal_mask_function,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> Tensor | None:
        """Return bool [B, 1 or H, T, S], or None if the pattern alone decides."""
        last = isinstance(q_offset, int) and q_offset + q_length == kv_length and not kv_offset
        padded = attention_mask is not None and not bool(attention_mask.all())
        if last and not padded and pattern.causal and mask_function is causal_mask_function:
            return None
        positions = None
        if padded:
            positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return sdpa_mask(
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=and_masks(mask_function, _allowed(pattern, positions)),
            attention_mask=attention_mask,
            **(others | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}),
        )

    return mask


def _allowed(pattern: Pattern, positions: Tensor | None) -> Callable[..., Tensor]:
    """Return the pattern as a mask function of transformers; positions are int [B, S]."""

    def allowed(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        if positions is None:
            return pattern.allowed(q, k)
        last = positions.shape[1] - 1
        rows = positions.to(q.device)
        return pattern.allowed(rows[batch, q.clamp(max=last)], rows[batch, k.clamp(max=last)])

    return allowed


def _attention(pattern: Pattern) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: torch.nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Return [B, T, H, D] of q [B, H, T, D], k and v [B, G, S, D]."""
        if position_bias is not None:
            raise ConfigError(
                "this model's attention has position_bias, which a pattern of suffice does not "
                "compute; use another model."
            )
        if dropout:
            config = getattr(module, "config", None)
            name = next((name for name in DROPOUTS if hasattr(config, name)), "its dropout")
            raise ConfigError(
                "attention dropout in a stock model with a pattern of suffice: build the model "
                f"with {name} = 0 in its configuration."
            )
        restricts: dict[str, Any] = (
            {"pattern": pattern} if attention_mask is None else {"mask": attention_mask}
        )
        out = attend(q, k, v, scale=scaling, cap=softcap, sinks=s_aux, **restricts)
        return out.transpose(1, 2).contiguous(), None

    return attention
