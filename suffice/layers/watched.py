"""Records the attention maps of a model's calls inside a `watched` block.

Letters: B batch, H query heads, T queries, S keys, R keys after the mixing.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, StateError
from suffice.layers.attention import Attention
from suffice.layers.inputs import SharedKV


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """The weights of one layer in one call.

    Args:
        layer: name of the layer in the model.
        weights: [B, H, T, R], what the kernel gives each key it reads: rows sum to 1, or to
            exactly 0 for a query that may see no key. R = S unless the mixing shortens the keys.
        effective: [B, H, T, S], what each query takes of each value: the weights times what the
            mixing does along the sequence (S W_A for Super Attention). The same tensor as the
            weights where nothing mixes. Its rows need not sum to 1 and may be negative; the b of
            a mixing and the sums of `Infini` over earlier segments are not part of it.
    """

    layer: str
    weights: Tensor
    effective: Tensor

    @property
    def mixed(self) -> bool:
        """Whether a mixing stands between the weights and the values."""
        return self.effective is not self.weights


@contextmanager
def watched(model: nn.Module) -> Iterator[list[AttentionMap]]:
    """Collect the maps of every attention layer that is called inside the block, in their order.

    Recording does not change the outputs: the maps are computed separately, from the formula, so
    that dense, sparse and linear mechanisms all have them. That takes B H T S numbers for each
    call: watch short texts. Weights are those before dropout, without gradients. Outside the
    `with` block a layer does no extra work.

    A stock model of transformers computes attention by its eager function meanwhile, whose weights
    are the maps; its `generate` adds those of each query against the KV cache. Recurrent layers
    have no weights and add none; with sinks (gpt-oss) rows sum to less than 1.

    Args:
        model: model with attention layers, or such a layer, or a model of transformers.

    Yields:
        A list that grows; clear it between calls if need be.

    Raises:
        ConfigError: if the model has no attention that can be watched, or is compiled.
        StateError: by the call itself, if it streams.

    Example:
        >>> from suffice import preset
        >>> layer = Attention(preset("super_attention", 8, 2, length=5))
        >>> with watched(layer) as maps:
        ...     y = layer(torch.randn(1, 5, 8))
        >>> maps[0].weights.shape, maps[0].weights.sum(-1).round().unique()
        (torch.Size([1, 2, 5, 5]), tensor([1.]))
    """
    layers = {name: m for name, m in model.named_modules() if isinstance(m, Attention)}
    stock = getattr(sys.modules.get("transformers"), "PreTrainedModel", ())
    if not layers and not isinstance(model, stock):
        raise ConfigError(
            f"{type(model).__name__} has no attention; give a model of suffice or transformers."
        )
    if any(map(_compiled, model.modules())):
        raise ConfigError(
            "hooks do not run inside a compiled model; watch the model that was compiled."
        )
    maps: list[AttentionMap] = []
    if not layers:
        from suffice.layers.stock import recording

        def record_stock(name: str, weights: Tensor) -> None:
            maps.append(AttentionMap(layer=name, weights=weights, effective=weights))

        with recording(model, record_stock):  # type: ignore[arg-type]
            yield maps
        return
    mixings: dict[SharedKV | None, Tensor] = {}

    def watch(name: str, layer: Attention) -> Any:
        def record(_: nn.Module, args: tuple, kwargs: dict[str, Any], __: Tensor) -> None:
            maps.append(_map(name, layer, args, kwargs, mixings))

        return layer.register_forward_hook(record, with_kwargs=True)

    hooks = [watch(name, layer) for name, layer in layers.items()]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def _map(
    name: str,
    layer: Attention,
    args: tuple,
    kwargs: dict[str, Any],
    mixings: dict[SharedKV | None, Tensor],
) -> AttentionMap:
    if kwargs.get("state") is not None:
        raise StateError(
            "a call with a state has no separate map; watch one call on the whole text, without "
            "a state, which gives the same."
        )
    kwargs = {name: value for name, value in kwargs.items() if name != "state"}
    weights = layer.weights(*args, **kwargs)
    effective, shared = weights, kwargs.pop("shared", None)
    along = mixings.get(shared) if "shares" in layer.spec.beyond_pairs else None
    if "mixing" in layer.spec.beyond_pairs:
        along = _along(layer, *args, **kwargs)
        if shared is not None:
            mixings[shared] = along
    if along is not None:
        each = along.repeat_interleave(weights.shape[1] // along.shape[1], dim=1)
        effective = (weights.double() @ each).to(weights.dtype)
    return AttentionMap(layer=name, weights=weights, effective=effective)


def _along(layer: Attention, *args: Any, **kwargs: Any) -> Tensor:
    """Return the mixing along the sequence as a matrix [B, G, R, S], float64, without its b."""
    inputs = layer.inputs(*args, **kwargs)
    batch, keys = inputs.source.shape[:2]
    identity = torch.eye(keys, dtype=torch.float64, device=inputs.source.device)
    v = identity.expand(batch, layer.spec.kv_heads, keys, keys)
    k = torch.zeros_like(v[..., :1]).expand(*v.shape[:3], layer.spec.head_width)
    mixing = copy.deepcopy(layer.mixing).double()
    with torch.autocast(inputs.source.device.type, enabled=False):
        return mixing(k, v, inputs.rows)[1] - mixing(k, torch.zeros_like(v), inputs.rows)[1]


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
