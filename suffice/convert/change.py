"""What is asked of each layer, and whether it can be had exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from suffice.convert.exact import exact
from suffice.convert.maps import Maps, read
from suffice.convert.moments import attentions
from suffice.convert.proof import EXACT, difference
from suffice.convert.target import Steps, spec_after
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.spec import AttentionSpec


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
