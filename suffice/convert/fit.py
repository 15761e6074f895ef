"""Fitting layers on what a model reads: candidates for each, of which the best one is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import Moments, attentions, watched
from suffice.convert.closed_form import NAIVE, Regression, fitted, naive
from suffice.convert.exact import Change, exact
from suffice.convert.maps import Maps, build, read
from suffice.convert.target import spec_after
from suffice.layers import Attention

CLOSED = "closed form"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted layer.

    Args:
        maps: of it.
        chosen: what the fit began with.
        error: root mean square of the change of its output over that of its output, on what it
            was fitted on; None where nothing was read.
    """

    maps: Maps
    chosen: str
    error: float | None


def starts(
    change: Change, layer: Attention, moments: Moments | None, size: int | None
) -> dict[str, Maps]:
    """Return the maps a fit may begin with, by how they are called.

    Args:
        change: what is asked.
        layer: as it is.
        moments: of its inputs; None = only the usual start is wanted.
        size: the model's length, tokens.

    Raises:
        ConfigError: if a step has no closed form for this layer.
    """
    spec, usual = layer.spec, read(layer)
    best, names = usual, []
    for step in change.steps:
        after = spec_after(step, spec, size)
        same = exact(step, usual, spec, after) if step.name != "window" else None
        if same is None:
            names.append(NAIVE[step.name])
        usual = same or naive(step, usual, spec, after)
        if moments is not None:
            best = exact(step, best, spec, after) or fitted(step, best, spec, after, moments)
        spec = after
    begun = {", ".join(names): usual}
    return begun if moments is None else {CLOSED: best} | begun


@torch.no_grad()
def fit(
    model: nn.Module,
    begun: Mapping[str, Mapping[str, Maps]],
    asked: Mapping[str, Change],
    batches: Iterable[Tensor],
    *,
    refit: bool = True,
    step: Callable[[int], None] = lambda _done: None,
) -> dict[str, Fit]:
    """Return the best fit of each layer.

    Args:
        model: as it was, in evaluation.
        begun: maps to begin with, of each layer by name.
        asked: what is asked of each layer by name.
        batches: that the model is called with.
        refit: whether output maps are refitted; False only tells the errors.
        step: told how many batches are done.
    """
    layers = attentions(model)
    trials = {
        name: {
            called: Trial(build(maps, asked[name].spec, like=layers[name]))
            for called, maps in of_layer.items()
        }
        for name, of_layer in begun.items()
    }

    def seen(name: str, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
        for trial in trials[name].values():
            trial.add(x, where, y)

    with watched({name: layers[name] for name in trials}, seen):
        for done, batch in enumerate(batches, start=1):
            model(batch)
            step(done)
    return {name: best_of(begun[name], of_layer, refit=refit) for name, of_layer in trials.items()}


def best_of(begun: Mapping[str, Maps], trials: Mapping[str, Trial], *, refit: bool = True) -> Fit:
    """Return the best of what one layer's fit began with.

    Args:
        begun: maps by how they are called.
        trials: of each, which have seen the text.
        refit: whether output maps are refitted; False only tells the errors.
    """
    fits = []
    for called, trial in trials.items():
        maps = trial.sums.refitted(begun[called]) if refit else begun[called]
        fits.append(Fit(maps=maps, chosen=called, error=trial.sums.error(maps)))
    return min(fits, key=lambda one: one.error)


class Trial:
    """A layer whose output map is to be refitted, and the sums for that."""

    def __init__(self, layer: Attention) -> None:
        self.layer = layer.eval()
        width = layer.o_proj.in_features
        self.sums = Regression(width, layer.spec.d_model, bias=layer.spec.bias)
        self.read: Tensor | None = None
        layer.o_proj.register_forward_pre_hook(self._keep)

    def _keep(self, _linear: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.read = given[0]

    def add(self, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
        """Take an input [B, T, M], what was called with it, and the wanted output."""
        self.layer(x, **where)
        z, valid = self.read, where.get("valid")
        if valid is not None:
            z, y = z[valid], y[valid]
        self.sums.add(z.flatten(0, -2), y.flatten(0, -2))


@torch.no_grad()
def errors(
    model: nn.Module, layers: Mapping[str, Attention], batches: Iterable[Tensor]
) -> dict[str, float]:
    """Return how far the outputs of other layers are from those of a model's own.

    Args:
        model: as it was, in evaluation.
        layers: the others, by the names of its own.
        batches: that the model is called with.

    Returns:
        Root mean square of the change over that of the output, of each layer.
    """
    own = attentions(model)
    lost, whole = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)

    def seen(name: str, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
        wrong, valid = layers[name](x, **where) - y, where.get("valid")
        if valid is not None:
            wrong, y = wrong[valid], y[valid]
        lost[name] += float(wrong.double().square().sum())
        whole[name] += float(y.double().square().sum())

    with watched({name: own[name] for name in layers}, seen):
        for batch in batches:
            model(batch)
    return {name: (lost[name] / max(whole[name], 1e-300)) ** 0.5 for name in layers}
