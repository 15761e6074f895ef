"""Layers that share keys and values with their neighbours, fitted in closed form.

Of N neighbouring layers the first one, the maker, makes keys and values for all. Those of the
others are explained by the maker's input, so that a map from the shared keys to a layer's own moves
into its map of queries, and one of values into its output map, which is refitted last.

Letters: H query heads, G key/value heads, D head width, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import (
    Moments,
    attention_layers,
    check_read,
    observing,
    read_batch,
    with_ridge,
)
from suffice.convert.closed_form import rotary_pairs, shared, times_conjugate
from suffice.convert.exact import Change
from suffice.convert.fit import CLOSED_FORM, Fit, FitTrial
from suffice.convert.maps import Maps, build, read
from suffice.convert.target import Step
from suffice.layers import Attention
from suffice.layers.inputs import SharedKV
from suffice.spec import AttentionSpec

FIRST, AVERAGE = "first layer", "average"


@dataclass(frozen=True, kw_only=True)
class SharingGroup:
    maker: str  # name of the first layer
    readers: tuple[str, ...]  # names of the others
    free: bool  # whether the maker's maps may change

    @property
    def names(self) -> tuple[str, ...]:
        return self.maker, *self.readers


def groups_of(planned: Mapping[str, Change]) -> list[SharingGroup]:
    """Return the groups of a plan: layers that share, by the layer whose keys they read."""
    names = list(planned)
    readers: dict[str, list[str]] = {}
    for name, change in planned.items():
        if change.shares:
            readers.setdefault(names[change.spec.shares], []).append(name)
    return [
        SharingGroup(maker=maker, readers=tuple(members), free=not planned[maker].unchanged)
        for maker, members in readers.items()
    ]


def kept(change: Change) -> Change:
    """Return the change of a layer that stays as it is."""
    return replace(change, steps=(Step(name="keep"),))


@torch.no_grad()
def fit_groups(
    model: nn.Module,
    groups: Sequence[SharingGroup],
    planned: Mapping[str, Change],
    batches: Iterable[Tensor] | None,
    *,
    naive: bool = False,
    step: Callable[[str, int], None] = lambda _stage, _done: None,
) -> dict[str, dict[str, Fit]]:
    """Return the fits of all layers of groups, by where the shared keys and values come from.

    Makers that keep their own have no fit. `batches` are read twice; None fits nothing. `naive`
    takes the maker's keys and values and leaves the other maps as they are.
    """
    layers = attention_layers(model)
    maps = {name: read(layers[name]) for group in groups for name in group.names}
    if batches is None:
        readers = [name for group in groups for name in group.readers]
        return {FIRST: {name: Fit(maps=maps[name], chosen=FIRST, error=None) for name in readers}}
    starts = {group.maker: {FIRST: maps} for group in groups}
    if not naive:
        joint = _joint_moments(model, groups, batches, lambda done: step("reading", done))
        starts = {group.maker: _candidates(group, maps, layers, joint) for group in groups}
    trials = {
        group.maker: [
            _GroupTrial(start, group, candidate, planned, layers)
            for start, candidate in starts[group.maker].items()
        ]
        for group in groups
    }
    group_of = {name: group.maker for group in groups for name in group.names}

    def add(name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        for trial in trials[group_of[name]]:
            trial.add(name, x, call, y)

    with observing({name: layers[name] for name in group_of}, add):
        for done, batch in enumerate(batches, start=1):
            read_batch(model, batch)
            step("fitting", done)
    return {
        start: {
            name: fit
            for group in groups
            for trial in trials[group.maker]
            if trial.start == (start if group.free else FIRST)
            for name, fit in trial.fits(refit=not naive).items()
            if name != group.maker or trial.start != FIRST
        }
        for start in dict.fromkeys(trial.start for row in trials.values() for trial in row)
    }


def least_error(fits: Mapping[str, Mapping[str, Fit]]) -> str:
    """Return the start whose layers' outputs are nearest to the original's."""
    return min(fits, key=lambda start: sum(fit.error**2 for fit in fits[start].values()))


class _GroupTrial:
    def __init__(
        self,
        start: str,
        group: SharingGroup,
        maps: Mapping[str, Maps],
        planned: Mapping[str, Change],
        layers: Mapping[str, Attention],
    ) -> None:
        self.start, self.shared = start, SharedKV()
        self.trials = {
            name: FitTrial(
                name, start, maps[name], build(maps[name], planned[name].spec, like=layers[name])
            )
            for name in group.names
        }

    def add(self, name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        self.trials[name].add(x, {**call, "shared": self.shared}, y)

    def fits(self, *, refit: bool) -> dict[str, Fit]:
        return {name: trial.fit(refit=refit) for name, trial in self.trials.items()}


def _joint_moments(
    model: nn.Module,
    groups: Sequence[SharingGroup],
    batches: Iterable[Tensor],
    step: Callable[[int], None],
) -> dict[str, Tensor]:
    """Return E[[x 1]^T [y 1]] of the maker's inputs x and each layer's y: [M + 1, M + 1]."""
    layers = attention_layers(model)
    maker_of = {name: group.maker for group in groups for name in group.names}
    sums: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}  # of makers, in this call of the model

    def add(name: str, x: Tensor, call: dict[str, Any], _y: Tensor) -> None:
        valid = call.get("valid")
        rows = (x if valid is None else x[valid]).flatten(0, -2).double().cpu()
        rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)
        if name == maker_of[name]:
            inputs[name] = rows
        sums[name] = sums.get(name, 0.0) + inputs[maker_of[name]].T @ rows

    done = 0
    with observing({name: layers[name] for name in maker_of}, add):
        for done, batch in enumerate(batches, start=1):
            read_batch(model, batch)
            step(done)
    check_read(done, sums)
    return {name: one / one[-1, -1] for name, one in sums.items()}


def _candidates(
    group: SharingGroup,
    maps: Mapping[str, Maps],
    layers: Mapping[str, Attention],
    joint: Mapping[str, Tensor],
) -> dict[str, dict[str, Maps]]:
    maker, second = maps[group.maker], joint[group.maker]
    spec = layers[group.maker].spec
    options = {FIRST: (maker.k, maker.v)}
    if group.free and spec.encoder.learns_keys:
        explained = [
            _explained(maps[name], second, joint[name], bias=spec.bias) for name in group.names
        ]
        fitted = shared(_stacked(explained), spec, len(maker.k), Moments.of(second))
        options[CLOSED_FORM] = fitted.k, fitted.v
        options[AVERAGE] = tuple(
            torch.stack([getattr(maps[name], part) for name in group.names]).mean(dim=0)
            for part in "kv"
        )
    for start, (k, v) in options.items():  # what the encoder has no map of stays
        values = v if spec.encoder.learns_values else maker.v
        options[start] = k, k if spec.encoder.shares else values
    candidates = {
        start: {
            name: _aligned(maps[name], k, v, layers[name].spec, second, joint[name])
            for name in group.names
        }
        for start, (k, v) in options.items()
    }
    candidates[FIRST][group.maker] = maker
    return candidates


def _explained(maps: Maps, second: Tensor, joint: Tensor, *, bias: bool) -> Maps:
    """Return a layer's keys and values as maps of the maker's input, by least squares."""
    size = len(second) if bias else len(second) - 1
    inverse = torch.linalg.solve(with_ridge(second[:size, :size]), joint[:size])

    def explained(part: Tensor) -> Tensor:
        rows = inverse @ part
        return torch.nn.functional.pad(rows, (0, 0, 0, part.shape[1] - size))

    return replace(maps, k=explained(maps.k), v=explained(maps.v))


def _stacked(layers: Sequence[Maps]) -> Maps:
    groups = len(layers[0].k)

    def stacked(part: str) -> Tensor:
        return torch.cat(
            [getattr(one, part).unflatten(0, (groups, -1)) for one in layers], dim=1
        ).flatten(0, 1)

    return replace(layers[0], **{part: stacked(part) for part in "qkvo"})


def _aligned(
    maps: Maps, k: Tensor, v: Tensor, spec: AttentionSpec, second: Tensor, joint: Tensor
) -> Maps:
    """Return a layer that reads shared keys and values, maps of the maker's input.

    Its own keys and values are those shared times a matrix of each key head, by least squares; a
    rotary pair, a complex number, times a complex number.
    """
    centred = second - second[:, -1:] * second[-1], joint - second[:, -1:] * joint[-1]
    groups = len(k)
    q, o = maps.q.clone().unflatten(0, (groups, -1)), maps.o.unflatten(0, (groups, -1)).clone()
    pairs, unrotated = rotary_pairs(spec.lower().rotary, k.shape[-1])
    for g in range(groups):
        if not spec.norm.norms:  # a norm between maps and keys is not a matrix
            power, product = (k[g].T @ x @ y for x, y in ((second, k[g]), (joint, maps.k[g])))
            for pair in map(list, pairs):
                factor = _complex_factor(power[pair][:, pair], product[pair][:, pair])
                q[g][:, :, pair] = times_conjugate(q[g][:, :, pair], factor.expand(len(q[g])))
            if unrotated:
                own, shared_ = maps.k[g][:, unrotated], k[g][:, unrotated]
                q[g][:, :, unrotated] = q[g][:, :, unrotated] @ _regression(shared_, own, centred).T
        o[g] = _regression(v[g], maps.v[g], centred if spec.bias else (second, joint)) @ o[g]
    return replace(maps, q=q.flatten(0, 1), k=k, v=v, o=o.flatten(0, 1))


def _regression(shared: Tensor, own: Tensor, moments: tuple[Tensor, Tensor]) -> Tensor:
    """Return the matrix that shared features are multiplied by to give a layer's own ones."""
    second, joint = moments
    return torch.linalg.solve(with_ridge(shared.T @ second @ shared), shared.T @ joint @ own)


def _complex_factor(power: Tensor, product: Tensor) -> Tensor:
    """Return E[k' conj(k)] / E[|k|^2] of pairs as complex numbers, of E[k k^T] and E[k k'^T]."""
    size = power.diagonal().sum().clamp(min=1e-300)
    return torch.complex(product.diagonal().sum(), product[0, 1] - product[1, 0]) / size
