"""Conversions that change nothing but the maps: recognised by what the maps hold, never by trying.

Letters: H query heads, G key/value heads, D head width, M d_model, S d_source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attentions
from suffice.convert.closed_form import columns_of, slices
from suffice.convert.maps import Maps, build, read
from suffice.convert.target import Step, Steps, spec_after
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.spec import AttentionSpec


def exact(step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:
    """Return the maps after one change if they compute what they did, else None.

    Args:
        step: the change; what it does to a pattern is not looked at.
        maps: of the layer.
        spec: of the layer.
        after: its composition then, as `spec_after` says.
    """
    if spec.mixing.mixes and step.name not in ("keep", "window", "standard"):
        return None  # what a mixing adds to values would pass other maps than before
    return _EXACT[step.name](maps, spec, after)


def _same(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps:  # noqa: ARG001
    return maps


def _regrouped(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:  # noqa: ARG001
    """Repeat heads, or let those share that are equal."""
    groups = after.kv_heads
    if groups % len(maps.k) == 0:
        return maps.with_heads(groups)
    if len(maps.k) % groups:
        return None
    merged = {}
    for name in "kv":
        parts = getattr(maps, name).unflatten(0, (groups, -1))
        if not torch.equal(parts, parts[:, :1].expand_as(parts)):
            return None
        merged[name] = parts[:, 0]
    return replace(maps, **merged)


def _optimised(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:
    """Take a value map into the output map where it reads no other head's columns."""
    regrouped = _regrouped(maps, spec, after)
    own = None if regrouped is None else _own_columns(regrouped.v)
    if own is None:
        return None
    bias = (regrouped.of_query(regrouped.v)[:, -1:] @ regrouped.o).sum(dim=(0, 1))
    return replace(
        regrouped,
        v=slices(regrouped.v.shape[1] - 1, *own.shape[:2]),
        o=regrouped.of_query(own) @ regrouped.o,
        offset=regrouped.offset + bias,
    )


def _efficient(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:
    """Take the key map into the query map, too."""
    without_v = _optimised(maps, spec, after)
    own = None if without_v is None else _own_columns(without_v.k)
    if own is None:
        return None
    stays = spec.position.rotates or spec.norm.norms  # nothing may stand between the two maps
    if stays and not torch.equal(without_v.k, without_v.v):
        return None
    q = without_v.q @ without_v.of_query(own).transpose(1, 2)
    return replace(without_v, q=q, k=without_v.v)


def _latent(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps | None:  # noqa: ARG001
    """Read everything of the input, or all heads' keys and values side by side."""
    width, inputs = after.head_width, maps.k.shape[1] - 1
    both = torch.cat([*maps.k, *maps.v], dim=1)
    if both.shape[1] <= width:
        own = maps.k.shape[-1]
        place = torch.arange(len(maps.q)) // maps.shared * own
        wide = torch.nn.functional.pad(both, (0, width - both.shape[1]))[None]
        return replace(
            maps,
            q=_placed(maps.q, place, width),
            k=wide,
            v=wide,
            o=_placed(maps.o.transpose(1, 2), place + both.shape[1] // 2, width).transpose(1, 2),
        )
    if inputs <= width:
        return _whole(maps, width)
    return None


def _input(maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps:  # noqa: ARG001
    return _whole(maps, after.head_width)


def _whole(maps: Maps, width: int) -> Maps:
    """Read the input itself, filled up with zeros to a width."""
    inputs = maps.k.shape[1] - 1
    keys, values = maps.of_query(maps.k), maps.of_query(maps.v)
    fill = (0, width - inputs)
    both = torch.nn.functional.pad(slices(inputs, 1, inputs), fill)
    return Maps(
        q=torch.nn.functional.pad(maps.q @ keys[:, :-1].transpose(1, 2), fill),
        k=both,
        v=both,
        o=torch.nn.functional.pad(values[:, :-1] @ maps.o, (0, 0, *fill)),
        offset=maps.offset + (values[:, -1:] @ maps.o).sum(dim=(0, 1)),
    )


def _own_columns(maps: Tensor) -> Tensor | None:
    """Return [G, D, D] of maps [G, S + 1, D] that read their own slices alone, else None."""
    width = maps.shape[-1]
    own = []
    for head, one in enumerate(maps):
        at = columns_of(head, width)
        rest = one[:-1].clone()
        own.append(one[at])
        rest[at] = 0.0
        if bool(rest.any()):
            return None
    return torch.stack(own)


def _placed(part: Tensor, place: Tensor, width: int) -> Tensor:
    """Return [H, N, width] with each head's [N, D] at its place, zeros elsewhere."""
    wide = part.new_zeros(*part.shape[:2], width)
    for head, at in enumerate(place.tolist()):
        wide[head, :, at : at + part.shape[-1]] = part[head]
    return wide


_EXACT: dict[str, Callable[[Maps, AttentionSpec, AttentionSpec], Maps | None]] = {
    "keep": _same,
    "window": _same,
    "standard": _same,
    "gqa": _regrouped,
    "optimised": _optimised,
    "efficient": _efficient,
    "super": _efficient,
    "latent": _latent,
    "input": _input,
}


ROWS, LENGTH = 2, 24
EXACT = 1e-9  # of the largest output: above it rounding alone is no explanation


@torch.no_grad()
def difference(
    layer: Attention,
    maps: Maps,
    spec: AttentionSpec,
    *,
    longest: int | None = None,
    seed: int = 0,
) -> float:
    """Return the largest difference of outputs over the largest output.

    Args:
        layer: as it was.
        maps: of the layer it becomes.
        spec: of that layer.
        longest: the longest input the model reads, tokens; None = any.
        seed: of the inputs.
    """
    given = (longest, layer.spec.max_length, spec.max_length)
    limits = [n for n in given if n is not None]
    length = min([LENGTH, *limits])
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, length, spec.d_model, generator=draws, dtype=torch.float64)
    read = [x]
    if spec.widths.d_source != spec.d_model:
        wide = (ROWS, length, spec.widths.d_source)
        read.append(torch.randn(wide, generator=draws, dtype=torch.float64))
    was = Attention(layer.spec, dtype=torch.float64).eval()
    was.load_state_dict({n: t.double() for n, t in layer.state_dict().items()})
    now = build(maps, spec, dtype=torch.float64, like=was)
    before = was(*read)
    return float((now(*read) - before).abs().max() / before.abs().max().clamp(min=1e-300))


@dataclass(frozen=True, kw_only=True)
class Change:
    """One layer and what it is to become.

    Args:
        layer: as it is.
        steps: the changes.
        spec: of the layer then.
        maps: of the layer then, where they compute the same; None where they have to be fitted.
        difference: what `proof` measured, where maps are given.
        exact_up_to: tokens up to which windows change nothing; None = there is no such limit.
    """

    layer: Attention
    steps: Steps
    spec: AttentionSpec
    maps: Maps | None
    difference: float | None = None
    exact_up_to: int | None = None

    @property
    def kept(self) -> bool:
        """Whether nothing is asked."""
        return all(step.name == "keep" for step in self.steps)

    @property
    def words(self) -> str:
        """The changes."""
        return ",".join(map(str, self.steps))


def changes(model: nn.Module, plan: Mapping[str, Steps]) -> dict[str, Change]:
    """Return what is asked of each layer of a model.

    Args:
        model: holds the layers.
        plan: the changes of each by name.

    Raises:
        ConfigError: naming a layer that cannot become what is asked.
    """
    layers = attentions(model)
    found = {}
    for name, steps in plan.items():
        try:
            found[name] = _change(layers[name], steps, model)
        except ConfigError as error:
            raise ConfigError(f"{name or 'the layer'}: {error}") from error
    return found


def _change(layer: Attention, steps: Steps, model: nn.Module) -> Change:
    size = getattr(getattr(model, "config", None), "length", None)
    longest = _longest(model, layer.spec, size)
    spec, windows = layer.spec, []
    kept = all(step.name == "keep" for step in steps)
    maps: Maps | None = None if kept else read(layer)
    for step in steps:
        after = spec_after(step, spec, size)
        if maps is not None:
            maps = exact(step, maps, spec, after)
        if step.name == "window" and after != spec:
            windows.append(step.number)
        spec = after
    reach = min(windows, default=None)
    if reach is not None and (longest is None or longest > reach):
        return Change(layer=layer, steps=steps, spec=spec, maps=None, exact_up_to=reach)
    if kept:
        return Change(layer=layer, steps=steps, spec=spec, maps=None)
    found = None if maps is None else difference(layer, maps, spec, longest=longest)
    if found is not None and not found <= EXACT:
        maps = found = None  # the algebra holds, the numbers do not: weights too far from regular
    return Change(layer=layer, steps=steps, spec=spec, maps=maps, difference=found)


def _longest(model: nn.Module, spec: AttentionSpec, size: int | None) -> int | None:
    """Return how long a sequence can be at most; None = there is no limit."""
    config = getattr(model, "config", None)
    learned = getattr(config, "positions", "learned") == "learned"
    limits = [spec.max_length, size if learned else None]
    return min((n for n in limits if n is not None), default=None)
