"""Records the attention weights of models of transformers, by an attention implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import eager_mask

from suffice.errors import ConfigError

NAME = "suffice_watched"  # of the implementation
Record = Callable[[str, Tensor], None]  # takes the name of a layer and its weights
_watched: dict[nn.Module, tuple[str, Record]] = {}  # the names of layers, and who records them


@contextmanager
def recording(model: PreTrainedModel, record: Record) -> Iterator[None]:
    """Record the weights of each attention that the model computes inside the block.

    They are those that the model's own eager function multiplies its values with.
    """
    before = implementations(model.config)
    if before[""] == NAME or not model._can_set_attn_implementation():
        raise ConfigError(
            f"{type(model).__name__} is watched, or uses no AttentionInterface; give another model."
        )
    layers = dict(model.named_modules())
    _watched.update({module: (name, record) for name, module in layers.items()})
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for module in layers.values():
            del _watched[module]


def implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the names in use, as `set_attn_implementation` takes them back."""
    parts = {key: getattr(config, key, None) for key in config.sub_configs}
    return {"": config._attn_implementation} | {
        key: implementations(part) for key, part in parts.items() if part is not None
    }


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return what the eager function of the module's file does, and record its weights.

    That function gives a query that sees no key the same weight for every key; the map has 0.
    """
    if options.get("dropout"):
        raise ConfigError("weights are dropped out here; call model.eval() before it is watched.")
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = eager(module, query, key, value, attention_mask, **options)
    shown = weights.detach()
    if attention_mask is not None:
        hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
        shown = shown.masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)
    name, record = _watched[module]
    record(name, shown)
    return output, weights


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)
