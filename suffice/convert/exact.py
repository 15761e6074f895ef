"""Exact conversions, recognised from the maps of a layer and proven in float64.

Letters: H query heads, G key/value heads, D head width, M d_model, S d_source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers
from suffice.convert.closed_form import check_unmixed, column_maps, columns_of
from suffice.convert.maps import Maps, build, read
from suffice.convert.target import LEARNED, Step, Steps, spec_after
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.models import LM, Classifier, ViT
from suffice.spec import AttentionSpec, check_shares

TEST_ROWS, TEST_LENGTH = 2, 24
ROUNDING = 1e-9  # of the largest output


@dataclass(frozen=True, kw_only=True)
class Change:
    layer: Attention  # before
    steps: Steps  # the changes
    spec: AttentionSpec  # of the layer after them
    maps: Maps | None  # of that layer where it computes the same; None: to be fitted
    difference: float | None = None  # of outputs in float64, relative to the largest
    exact_up_to: int | None = None  # tokens up to which windows change nothing

    @property
    def unchanged(self) -> bool:
        return all(step.name == "keep" for step in self.steps)

    @property
    def learned(self) -> bool:
        """Whether the layer's maps are trained on the calibration."""
        return any(step.name in LEARNED for step in self.steps)

    @property
    def reads_moments(self) -> bool:
        """Whether maps to begin with are made of the moments of the layer's input."""
        return any(step.name not in ("window", "linear", "gla") for step in self.steps)

    @property
    def shares(self) -> bool:
        return self.spec.shares is not None

    @property
    def words(self) -> str:
        return ",".join(map(str, self.steps))


def changes(model: nn.Module, plan: Mapping[str, Steps]) -> dict[str, Change]:
    """Return the conversion of each layer of a model, with its maps where it is exact."""
    layers, changes = attention_layers(model), {}
    numbers = {name: number for number, name in enumerate(layers)}
    for name, steps in plan.items():
        try:
            if any(step.name == "share" for step in steps):
                changes[name] = _sharing(numbers[name], layers, steps, model)
            else:
                changes[name] = _change(layers[name], steps, model)
        except ConfigError as error:
            raise ConfigError(f"{name or 'the layer'}: {error}") from error
    changed = any(not change.unchanged for change in changes.values())
    if changed and any(layer.spec.shares is not None for layer in layers.values()):
        raise ConfigError(
            "layers of the model share keys and values already; convert a model whose layers make "
            "their own."
        )
    _check_makers(changes, list(layers))
    return changes


def _sharing(
    number: int, layers: Mapping[str, Attention], steps: Steps, model: nn.Module
) -> Change:
    (step,), names = steps, list(layers)
    first = number - number % step.number
    layer, alone = layers[names[number]], first + 1 == len(names) or step.number == 1
    if not isinstance(model, (LM, Classifier, ViT)):
        raise ConfigError(
            f"{step}: {type(model).__name__} does not call its layers one after another with what "
            "they share; convert a language model, a Classifier or a ViT."
        )
    check_unmixed(step, layer.spec)
    read(layer)  # refuses what has no maps of keys and values
    if first == number:
        kept = (Step(name="keep"),) if alone else steps
        return Change(layer=layer, steps=kept, spec=layer.spec, maps=None)
    spec = replace(layer.spec, shares=first)
    check_shares([*(layers[name].spec for name in names[:number]), spec])
    return Change(layer=layer, steps=steps, spec=spec, maps=None)


def _check_makers(changes: Mapping[str, Change], names: list[str]) -> None:
    for name, change in changes.items():
        maker = changes.get(names[change.spec.shares]) if change.shares else None
        if maker is not None and not maker.unchanged and maker.steps != change.steps:
            raise ConfigError(
                f"{name} shares the keys and values of {names[change.spec.shares]}, which becomes "
                f"{maker.words}; keep that layer, or convert to {maker.words} first and what "
                f"comes out to {change.words}."
            )


def _change(layer: Attention, steps: Steps, model: nn.Module) -> Change:
    config = getattr(model, "config", None)
    length = getattr(config, "length", None)
    spec, change = layer.spec, Change(layer=layer, steps=steps, spec=layer.spec, maps=None)
    if change.unchanged:
        return change
    maps, windows = read(layer), []
    for step in steps:
        after = spec_after(step, spec, length)
        if maps is not None:
            maps = exact(step, maps, spec, after)
        if step.name == "window" and after != spec:
            windows.append(step.number)
        spec = after
    change = replace(change, spec=spec)
    learned = getattr(config, "positions", "learned") == "learned"
    limits = [n for n in (layer.spec.max_length, length if learned else None) if n is not None]
    longest = min(limits, default=None)
    if windows and (longest is None or longest > min(windows)):
        return replace(change, exact_up_to=min(windows))
    if maps is None:
        return change
    measured = difference(layer, maps, spec, longest=longest)
    if not measured <= ROUNDING:
        return change  # the algebra holds, the numbers do not: weights are nearly singular
    return replace(change, maps=maps, difference=measured)


@torch.no_grad()
def difference(
    layer: Attention, maps: Maps, spec: AttentionSpec, *, longest: int | None = None, seed: int = 0
) -> float:
    """Return the largest difference of outputs, in float64, relative to the largest output."""
    limits = (longest, layer.spec.max_length, spec.max_length)
    length = min([TEST_LENGTH, *(n for n in limits if n is not None)])
    draws = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn(TEST_ROWS, length, width, generator=draws, dtype=torch.float64)
        for width in dict.fromkeys((spec.d_model, spec.widths.d_source))
    ]
    before = Attention(layer.spec, dtype=torch.float64).eval()
    before.load_state_dict({n: t.double() for n, t in layer.state_dict().items()})
    after = build(maps, spec, dtype=torch.float64, like=before)
    expected = before(*inputs)
    return float((after(*inputs) - expected).abs().max() / expected.abs().max().clamp(min=1e-300))


def exact(step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:
    """Return the maps after one change if the layer computes the same, else None."""
    if step.name in ("keep", "window", "standard"):
        return maps
    if step.name in LEARNED:
        return None
    if "mixing" in spec.beyond_pairs:
        return None  # a mixing acts on values, so their map cannot be moved behind it
    if step.name == "gqa":
        return _regrouped(maps, after.kv_heads)
    if step.name == "optimised":
        return _without_value_map(maps, after.kv_heads)
    if step.name == "latent":
        return _latent(maps, after.head_width)
    if step.name == "input":
        return _of_input(maps, after.head_width)
    return _without_key_map(maps, spec, after.kv_heads)


def _regrouped(maps: Maps, kv_heads: int) -> Maps | None:
    if kv_heads % len(maps.k) == 0:
        return maps.with_heads(kv_heads)
    if len(maps.k) % kv_heads:
        return None
    k, v = (part.unflatten(0, (kv_heads, -1)) for part in (maps.k, maps.v))
    if not all(torch.equal(part, part[:, :1].expand_as(part)) for part in (k, v)):
        return None
    return replace(maps, k=k[:, 0], v=v[:, 0])


def _without_value_map(maps: Maps, kv_heads: int) -> Maps | None:
    """Multiply the value map into the output map, where it reads its own head's columns alone."""
    maps = _regrouped(maps, kv_heads)
    columns = None if maps is None else _own_columns(maps.v)
    if columns is None:
        return None
    return replace(
        maps,
        v=column_maps(maps.v.shape[1] - 1, *columns.shape[:2]),
        o=maps.per_query(columns) @ maps.o,
        offset=maps.offset + maps.value_bias,
    )


def _without_key_map(maps: Maps, spec: AttentionSpec, kv_heads: int) -> Maps | None:
    maps = _without_value_map(maps, kv_heads)
    columns = None if maps is None else _own_columns(maps.k)
    if columns is None:
        return None
    separated = spec.position.rotates or spec.norm.norms  # nothing may act between the two maps
    if separated and not torch.equal(maps.k, maps.v):
        return None
    return replace(maps, q=maps.q @ maps.per_query(columns).transpose(1, 2), k=maps.v)


def _latent(maps: Maps, width: int) -> Maps | None:
    """Share one head: all keys and values side by side, or the whole input."""
    inputs, head_dim = maps.k.shape[1] - 1, maps.k.shape[-1]
    both = torch.cat([*maps.k, *maps.v], dim=1)
    if both.shape[1] <= width:
        starts = torch.arange(len(maps.q)) // maps.group_size * head_dim
        shared = F.pad(both, (0, width - both.shape[1]))[None]
        o = _placed(maps.o.transpose(1, 2), starts + both.shape[1] // 2, width).transpose(1, 2)
        return replace(maps, q=_placed(maps.q, starts, width), k=shared, v=shared, o=o)
    return _of_input(maps, width) if inputs <= width else None


def _of_input(maps: Maps, width: int) -> Maps:
    """Share one head: the input itself, padded with zeros to a width."""
    inputs = maps.k.shape[1] - 1
    keys, values = maps.per_query(maps.k), maps.per_query(maps.v)
    padding = (0, width - inputs)
    shared = F.pad(column_maps(inputs, 1, inputs), padding)
    return Maps(
        q=F.pad(maps.q @ keys[:, :-1].transpose(1, 2), padding),
        k=shared,
        v=shared,
        o=F.pad(values[:, :-1] @ maps.o, (0, 0, *padding)),
        offset=maps.offset + maps.value_bias,
    )


def _own_columns(maps: Tensor) -> Tensor | None:
    """Return [G, D, D] of maps [G, S + 1, D] that read their own slices alone, else None."""
    blocks = []
    for head, one in enumerate(maps):
        columns = columns_of(head, maps.shape[-1])
        rest = one[:-1].clone()
        blocks.append(one[columns])
        rest[columns] = 0.0
        if bool(rest.any()):
            return None
    return torch.stack(blocks)


def _placed(part: Tensor, starts: Tensor, width: int) -> Tensor:
    """Return [H, N, width] with each head's [N, D] at its start, zeros elsewhere."""
    placed = part.new_zeros(*part.shape[:2], width)
    for head, start in enumerate(starts.tolist()):
        placed[head, :, start : start + part.shape[-1]] = part[head]
    return placed
