"""Fits layers on calibration inputs: starts from several maps, refits the output map of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import (
    RIDGE,
    Moments,
    Replay,
    attention_layers,
    check_read,
    observing,
    read_batch,
)
from suffice.convert.closed_form import USUAL_STARTS, fitted, naive
from suffice.convert.exact import Change, exact
from suffice.convert.maps import Maps, Weights, build, read, weights_of
from suffice.convert.target import LEARNED, spec_after
from suffice.convert.transfer import latent_keys, transfer
from suffice.layers import Attention

CLOSED_FORM, TRANSFER = "closed form", "attention transfer"


@dataclass(frozen=True, kw_only=True)
class Fit:
    maps: Maps | Weights
    chosen: str  # name of the start
    error: float | None  # relative root mean square of the output's change; None: not measured


def starts(
    change: Change, layer: Attention, moments: Moments | None, length: int | None
) -> dict[str, Maps | Weights]:
    """Return the maps that a fit may begin with, by name, the usual start last."""
    spec, usual = layer.spec, read(layer)
    best, names = usual, []
    for step in change.steps:
        after = spec_after(step, spec, length)
        same = None if step.name == "window" else exact(step, usual, spec, after)
        if same is None:
            names.append(USUAL_STARTS[step.name])
        if step.name == "mla":
            best = usual if moments is None else latent_keys(best, spec, after, moments)
            plain = torch.eye(spec.widths.d_source + 1, dtype=torch.float64)  # weights alone count
            usual = latent_keys(usual, spec, after, Moments.of(plain))
        elif step.name not in LEARNED and not isinstance(usual, Weights):
            usual = same or naive(step, usual, spec, after)
            if moments is not None:
                best = exact(step, best, spec, after) or fitted(step, best, spec, after, moments)
        spec = after
    maps = {", ".join(names): usual}
    if moments is None:
        return maps
    if change.learned:
        return {TRANSFER: best}
    return {CLOSED_FORM: best} if best is usual else {CLOSED_FORM: best} | maps


Key = Hashable


@torch.no_grad()
def fit(
    model: nn.Module,
    candidates: Mapping[Key, tuple[str, Change, Mapping[str, Maps | Weights]]],
    batches: Iterable[Tensor],
    *,
    refit: bool = True,
    step: Callable[[int], None] = lambda _done: None,
) -> dict[Key, Fit]:
    """Fit all candidates (layer name, change, maps to begin with) in one pass; return the best.

    With refit=False the errors are measured and the output maps stay. Starts for `transfer` are
    trained first.
    """
    layers = attention_layers(model)
    trials: dict[str, list[FitTrial]] = {}
    for key, (layer, change, maps) in candidates.items():
        trials.setdefault(layer, []).extend(
            FitTrial(key, start, one, build(one, change.spec, like=layers[layer]))
            for start, one in maps.items()
        )
    batches = list(batches)
    students = {n: [one.layer for one in each if one.trained] for n, each in trials.items()}
    if any(students.values()):
        transfer(model, students, batches, step)

    def add(name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        for trial in trials[name]:
            trial.add(x, call, y)

    with observing({name: layers[name] for name in trials}, add):
        for done, batch in enumerate(batches, start=1):
            read_batch(model, batch)
            step(done)
    check_read(len(batches), {n: t.sums.gram for n, row in trials.items() for t in row})
    fits: dict[Key, Fit] = {}
    for trial in (trial for of_layer in trials.values() for trial in of_layer):
        trial_fit = trial.fit(refit=refit)
        if trial.key not in fits or trial_fit.error < fits[trial.key].error:
            fits[trial.key] = trial_fit
    return fits


class FitTrial:
    """One start of a fit, and the sums for the regression of its output map."""

    def __init__(self, key: Key, start: str, maps: Maps | Weights, layer: Attention) -> None:
        self.key, self.start, self.maps = key, start, maps
        self.layer = layer.eval()
        self.sums = OutputRegression(
            layer.o_proj.in_features, layer.spec.d_model, bias=layer.spec.bias
        )
        self.features: Tensor | None = None  # inputs of the output projection at the latest call
        layer.o_proj.register_forward_pre_hook(lambda _, args: setattr(self, "features", args[0]))

    @property
    def trained(self) -> bool:
        """Whether all maps are trained, not the output map alone fitted."""
        return self.start == TRANSFER

    def add(self, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        """Call the layer, and add what its output map reads and the output y that is wanted."""
        self.layer(x, **call)
        z, valid = self.features, call.get("valid")
        if valid is not None:
            z, y = z[valid], y[valid]
        self.sums.add(z.flatten(0, -2), y.flatten(0, -2))

    def fit(self, *, refit: bool) -> Fit:
        """Return the fit, its output map by least squares if asked for."""
        maps = weights_of(self.layer) if self.trained else self.maps
        maps = self.sums.refitted(maps) if refit else maps
        return Fit(maps=maps, chosen=self.start, error=self.sums.error(maps))


class OutputRegression:
    """Least-squares refit of the output projection."""

    def __init__(self, features: int, outputs: int, *, bias: bool) -> None:
        self.bias = bias
        size = features + bias
        self.gram = torch.zeros(size, size, dtype=torch.float64)
        self.cross = torch.zeros(size, outputs, dtype=torch.float64)
        self.energy = 0.0

    def add(self, z: Tensor, y: Tensor) -> None:
        """Add features [N, F] and wanted outputs [N, M]."""
        z, y = z.double().cpu(), y.double().cpu()
        if self.bias:
            z = torch.nn.functional.pad(z, (0, 1), value=1.0)
        self.gram += z.T @ z
        self.cross += z.T @ y
        self.energy += float(y.square().sum())

    def refitted(self, maps: Maps | Weights) -> Maps | Weights:
        """Return the maps with the best output map; the ridge pulls towards the present one."""
        before = self._rows(maps)
        ridge = RIDGE * self.gram.diagonal().mean().clamp(min=1e-12)
        damped = self.gram + ridge * torch.eye(len(self.gram), dtype=self.gram.dtype)
        rows = before + torch.linalg.solve(damped, self.cross - self.gram @ before)
        if not self.bias:
            return replace(maps, o=rows.view_as(maps.o))
        return replace(maps, o=rows[:-1].view_as(maps.o), offset=rows[-1])

    def error(self, maps: Maps | Weights) -> float:
        """Return the root mean square of the output's error relative to that of the output."""
        rows = self._rows(maps)
        squares = (rows * (self.gram @ rows - 2 * self.cross)).sum() + self.energy
        return math.sqrt(max(float(squares), 0.0) / max(self.energy, 1e-300))

    def _rows(self, maps: Maps | Weights) -> Tensor:
        rows = maps.o.flatten(0, 1)
        return torch.cat([rows, maps.offset[None]]) if self.bias else rows


@torch.no_grad()
def output_errors(
    model: nn.Module,
    layers: Mapping[str, Attention],
    batches: Iterable[Tensor],
    read: Callable[[nn.Module, Tensor], object] = read_batch,
) -> dict[str, float]:
    """Return the relative root mean square error of each converted layer's outputs."""
    original = attention_layers(model)
    errors, energies = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    replay = Replay(original | layers, layers)

    def add(name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        out = replay(name, x, call)
        if name not in layers:
            return
        error, valid = out - y, call.get("valid")
        if valid is not None:
            error, y = error[valid], y[valid]
        errors[name] += float(error.double().square().sum())
        energies[name] += float(y.double().square().sum())

    with observing({name: original[name] for name in replay.names}, add):
        for batch in batches:
            read(model, batch)
    return {name: (errors[name] / max(energies[name], 1e-300)) ** 0.5 for name in layers}
