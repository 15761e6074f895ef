"""Permutes the features of a language model so that column slices suit its layers.

A head that reads columns takes the features at its slice. All layers read one residual stream, so
one permutation serves all of them: the heads of the layers that will read columns choose features
in turns, each the one that explains most of the rest of the head's values, and keys.

Letters: M d_model, D head width, G key/value heads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from suffice.convert.calibration import Moments, attention_layers, with_ridge
from suffice.convert.closed_form import query_moments, rotary_pairs
from suffice.convert.exact import Change
from suffice.convert.maps import Maps, read
from suffice.encoders import Columns
from suffice.layers import Attention
from suffice.models import LM

SLICED = {"optimised": False, "efficient": True, "super": True}
"""Changes after which values are columns, and whether keys are, too."""
READERS = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.up", "mlp.gate")
WRITERS = ("attention.o_proj", "mlp.down")


M, L = TypeVar("M", bound=nn.Module), TypeVar("L", bound=LM)


def permuted_for(
    model: M, changes: Mapping[str, Change], moments: Mapping[str, Moments]
) -> tuple[M, Mapping[str, Moments]]:
    """Return an equal model, features permuted for the slices of its conversion, and moments."""
    sliced = {n: one for n, one in changes.items() if any(s.name in SLICED for s in one.steps)}
    if not sliced or not isinstance(model, LM) or not can_permute(model):
        return model, moments
    layers = attention_layers(model)
    heads = max(change.spec.kv_heads for change in sliced.values())
    width = next(iter(sliced.values())).spec.head_width
    residuals = [
        _LayerResidual(
            layers[name],
            moments[name],
            heads,
            keys=any(SLICED.get(step.name, False) for step in change.steps),
        )
        for name, change in sliced.items()
        if change.spec.kv_heads == heads
    ]
    order = _greedy_order(residuals, heads, width, model.config.d_model)
    return permuted(model, order), {name: one.permuted(order) for name, one in moments.items()}


def can_permute(model: nn.Module) -> bool:
    if type(model) is not LM or model.config.positions == "sinusoidal":
        return False
    if model.config.experts is not None:
        return False
    return not any(isinstance(module, Columns) for module in model.modules())


def permuted(lm: L, order: Tensor) -> L:
    """Return a model with equal logits whose feature i is feature order[i] of another."""
    lm = copy.deepcopy(lm)
    readers = [lm.embedding.tokens, lm.embedding.positions, lm.head]
    norms: list[Any] = [lm.norm]
    for block in lm.blocks:
        norms += [block.attention_norm, block.mlp_norm]
        norms += [block.attention_out_norm, block.mlp_out_norm]
        modules: dict[str, Any] = dict(block.named_modules())
        readers += [modules.get(name) for name in READERS]
        for name in WRITERS:
            _permute(modules[name].weight, order, 0)
            _permute(modules[name].bias, order, 0)
    for reader in readers:
        _permute(getattr(reader, "weight", None), order, 1)
    for norm in norms:
        _permute(getattr(norm, "weight", None), order, 0)
        _permute(getattr(norm, "bias", None), order, 0)
    return lm


@torch.no_grad()
def _permute(tensor: Tensor | None, order: Tensor, dim: int) -> None:
    if tensor is not None:
        tensor.copy_(tensor.index_select(dim, order.to(tensor.device)))


def _greedy_order(residuals: list[_LayerResidual], heads: int, width: int, features: int) -> Tensor:
    """Return the feature at each position: the slices first, then the remaining features."""
    free = torch.ones(features, dtype=torch.bool)
    slices: list[list[int]] = [[] for _ in range(heads)]
    for _ in range(width):
        for head, chosen in enumerate(slices):
            gains = sum(one.gains(head, chosen) for one in residuals)
            feature = int(torch.where(free, gains, -1.0).argmax())
            free[feature] = False
            chosen.append(feature)
            for one in residuals:
                one.take(head, feature)
    return torch.tensor(sum(slices, []) + free.nonzero()[:, 0].tolist())


class _LayerResidual:
    """The values and keys of one layer that the slices of its heads do not explain yet."""

    def __init__(self, layer: Attention, moments: Moments, heads: int, *, keys: bool) -> None:
        spec, maps = layer.spec, read(layer)
        second = with_ridge(moments.second(centred=spec.bias))
        self.second = with_ridge(moments.augmented[:-1, :-1])
        self.values = [_Residual(second, part) for part in _value_targets(maps, heads)]
        pairs, unrotated = rotary_pairs(spec.lower().rotary, spec.head_width)
        keys_of_heads = _key_targets(maps, heads, moments) if keys else []
        self.keys = [_Residual(second, part[:, unrotated]) for part in keys_of_heads if unrotated]
        self.pair_at = {place: pair for pair in pairs for place in pair}
        self.rotary_keys = keys_of_heads if pairs else []
        self.totals = [
            sum(float(((self.second @ part[:, list(p)]) * part[:, list(p)]).sum()) for p in pairs)
            for part in self.rotary_keys
        ]

    def gains(self, head: int, chosen: list[int]) -> Tensor:
        """Return the share that each feature would explain at the next place of a slice, [M]."""
        gains, place = self.values[head].gains(), len(chosen)
        if self.rotary_keys and place in self.pair_at:
            return gains + self._pair_gains(head, chosen)
        return gains + self.keys[head].gains() if self.keys else gains

    def _pair_gains(self, head: int, chosen: list[int]) -> Tensor:
        """Return the share of rotating keys, jointly with the pair's other feature if chosen."""
        place = len(chosen)
        a, b = self.pair_at[place]
        part = self.rotary_keys[head]
        cross = torch.complex(*(self.second @ part[:, [a, b]]).T.contiguous())
        power, sign = self.second.diagonal(), 1 if place == b else -1
        partner = a if place == b else b
        if partner >= place:
            gain = cross.abs().square() / power
        else:
            other = chosen[partner]
            both = cross[other] + sign * -1j * cross
            gain = both.abs().square() / (power + power[other])
            gain = gain - cross[other].abs().square() / power[other]
        return gain / max(self.totals[head], 1e-300)

    def take(self, head: int, feature: int) -> None:
        self.values[head].take(feature)
        if self.keys:
            self.keys[head].take(feature)


class _Residual:
    """A linear map of the input minus its regression on chosen features."""

    def __init__(self, second: Tensor, part: Tensor) -> None:
        self.second, self.part = second, part
        self.columns: list[Tensor] = []  # of the Cholesky factor, for the chosen features
        self.power = second.diagonal().clone()
        self.floor = self.power * 1e-9
        self.cross = second @ part
        self.total = float((self.cross * part).sum())

    def gains(self) -> Tensor:
        squares = self.cross.square().sum(dim=1)
        return squares / torch.maximum(self.power, self.floor) / max(self.total, 1e-300)

    def take(self, feature: int) -> None:
        column = self.second[:, feature].clone()
        for earlier in self.columns:
            column -= earlier * earlier[feature]
        column /= torch.maximum(self.power, self.floor)[feature].sqrt()
        self.columns.append(column)
        self.power = (self.power - column.square()).clamp(min=0.0)
        self.cross = self.cross - column[:, None] * (column @ self.part)


def _value_targets(maps: Maps, heads: int) -> list[Tensor]:
    """Return the values of the heads of each slice, weighted by the output map, [M, D] each."""
    values = maps.per_query(maps.v)[:, :-1]
    return [
        torch.cat([v @ _root(o @ o.T) for v, o in zip(vs, os, strict=True)], dim=1)
        for vs, os in zip(values.chunk(heads), maps.o.chunk(heads), strict=True)
    ]


def _key_targets(maps: Maps, heads: int, moments: Moments) -> list[Tensor]:
    """Return the keys of the heads of each slice, weighted by the queries' power, [M, D] each."""
    keys, power = maps.per_query(maps.k)[:, :-1], query_moments(maps.q, moments)
    weighted = keys * power.diagonal(dim1=1, dim2=2).sqrt()[:, None]
    return [part.sum(dim=0) / len(part) ** 0.5 for part in weighted.chunk(heads)]


def _root(matrix: Tensor) -> Tensor:
    return torch.linalg.cholesky(with_ridge(matrix, 1e-9))
