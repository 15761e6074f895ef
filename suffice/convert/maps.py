"""The four linear maps of an attention layer in float64, for any encoder.

Letters: H query heads, G key/value heads, D head width, M d_model, S d_source. Rows are inputs; the
last row of a map with one more row than inputs is its bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suffice.encoders import Columns, HeadRMS, NoNorm
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.packed import Packed
from suffice.spec import AttentionSpec
from suffice.spec.lowering import DenseSoftmax


@dataclass(frozen=True, kw_only=True)
class Maps:
    """The maps of one layer, keys and values included where they are columns of the input."""

    q: Tensor  # [H, M + 1, D]
    k: Tensor  # [G, S + 1, D]
    v: Tensor  # [G, S + 1, D]
    o: Tensor  # [H, D, M]
    offset: Tensor  # [M], the bias of the output map

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return len(self.q) // len(self.k)

    @property
    def value_bias(self) -> Tensor:
        """The biases of the values as they reach the output, [M]."""
        return (self.per_query(self.v)[:, -1:] @ self.o).sum(dim=(0, 1))

    def per_query(self, part: Tensor) -> Tensor:
        """Return k or v repeated for each query head: [H, S + 1, D]."""
        return part.repeat_interleave(len(self.q) // len(part), dim=0)

    def with_heads(self, kv_heads: int) -> Maps:
        """Return the same layer with each key/value head repeated, kv_heads in all."""
        times = kv_heads // len(self.k)
        k, v = (part.repeat_interleave(times, dim=0) for part in (self.k, self.v))
        return replace(self, k=k, v=v)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a layer that has other maps than four, and its output map."""

    state: dict[str, Tensor]  # by name, the output map among them or not
    o: Tensor  # [H, D, M]
    offset: Tensor  # [M]


@torch.no_grad()
def weights_of(layer: Attention) -> Weights:
    o = layer.o_proj.weight.double().cpu().T.unflatten(0, (layer.spec.num_heads, -1)).clone()
    bias = layer.o_proj.bias
    offset = o.new_zeros(layer.spec.d_model) if bias is None else bias.double().cpu()
    return Weights(state=dict(layer.state_dict()), o=o, offset=offset)


@torch.no_grad()
def read(layer: Attention) -> Maps:
    spec = layer.spec
    lowered = spec.lower()
    per_head = type(spec.norm) in (NoNorm, HeadRMS)  # others have numbers for every head
    if type(lowered) is not DenseSoftmax or lowered.infini is not None or not per_head:
        odd = (spec.kernel, spec.encoder, spec.norm, spec.combine, spec.past)
        if spec.shares is not None:
            raise ConfigError(
                f"a layer that reads keys and values of layer {spec.shares} cannot be converted; "
                "give a model whose layers make their own."
            )
        raise ConfigError(
            f"{', '.join(map(repr, odd))} cannot be converted, only plain softmax attention can; "
            "the target keep leaves a layer as it is."
        )
    return linear_maps(layer)


@torch.no_grad()
def linear_maps(layer: Attention) -> Maps:
    """Return the maps of a layer of softmax attention, whatever its norms and caps."""
    spec = layer.spec
    lowered = replace(spec, norm=NoNorm()).lower()
    if lowered.value_width != lowered.key_width:
        raise ConfigError(
            f"values of {lowered.value_width} and keys of {lowered.key_width} features per head "
            "cannot be converted; only equal widths can."
        )
    if any(isinstance(module, Packed) for module in layer.children()):
        raise ConfigError(
            "packed weights cannot be converted; unpack them (suffice.quantise.unpack) first."
        )
    if not all(bool(parameter.isfinite().all()) for parameter in layer.parameters()):
        raise ConfigError("weights hold NaN or infinity; give a model with finite weights.")
    source = spec.widths.d_source
    q = _split_heads(_rows(layer.q_proj, spec.d_model), spec.num_heads)
    k = v = _split_heads(_rows(layer.k_proj, source), spec.kv_heads)
    if not spec.encoder.shares:
        v = _split_heads(_rows(layer.v_proj, source), spec.kv_heads)
    o = layer.o_proj.weight.detach().double().cpu().T.unflatten(0, (spec.num_heads, -1))
    bias = layer.o_proj.bias
    offset = o.new_zeros(spec.d_model) if bias is None else bias.detach().double().cpu()
    return Maps(q=q, k=k, v=v, o=o.clone(), offset=offset.clone())


@torch.no_grad()
def build(
    maps: Maps | Weights, spec: AttentionSpec, *, dtype: torch.dtype | None = None, like: Attention
) -> Attention:
    """Return the layer with these maps; device, mode, norms and mixing are those of `like`."""
    weight = like.q_proj.weight
    layer = Attention(spec, device=weight.device, dtype=dtype or weight.dtype)
    _set(layer.o_proj, torch.cat([maps.o.flatten(0, 1), maps.offset[None]]))
    if isinstance(maps, Weights):
        own_map = {n: tensor for n, tensor in layer.state_dict().items() if n.startswith("o_proj.")}
        layer.load_state_dict(maps.state | own_map)
        return layer.train(like.training)
    _set(layer.q_proj, maps.q.transpose(0, 1).flatten(1))
    own = spec.shares is None
    if own and spec.encoder.learns_keys:
        _set(layer.k_proj, maps.k.transpose(0, 1).flatten(1))
    if own and spec.encoder.learns_values:
        _set(layer.v_proj, maps.v.transpose(0, 1).flatten(1))
    layer.q_norm.load_state_dict(like.q_norm.state_dict())
    if own:
        layer.k_norm.load_state_dict(like.k_norm.state_dict())
    if spec.mixing == like.spec.mixing:
        layer.mixing.load_state_dict(like.mixing.state_dict())
    return layer.train(like.training)


def _rows(linear: Any, inputs: int) -> Tensor:
    """Return W^T with the bias below it."""
    if isinstance(linear, Columns):
        return torch.eye(inputs + 1, dtype=torch.float64)[:, : linear.width]
    weight = linear.weight.detach().double().cpu()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.double().cpu()
    return torch.cat([weight.T, bias[None]])


def _split_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.unflatten(1, (heads, -1)).transpose(0, 1).contiguous()


def _set(linear: Any, rows: Tensor) -> None:
    linear.weight.copy_(rows[:-1].T)
    if linear.bias is not None:
        linear.bias.copy_(rows[-1])
