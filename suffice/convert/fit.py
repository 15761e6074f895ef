"""Fits layers on calibration inputs: starts from several maps, refits the output map of each.

Maps of another kind than the softmax of a layer (linear, gated) are trained on the outputs of the
layer before ("attention transfer"); those of a latent layer have a closed form.

Letters: H query heads, D head width, M d_model, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
    relative_error,
)
from suffice.convert.closed_form import (
    USUAL_STARTS,
    fitted,
    joint_basis,
    naive,
    rotary_pairs,
    shared_pair,
)
from suffice.convert.exact import Change, exact
from suffice.convert.maps import Maps, Weights, build, read, weights_of
from suffice.convert.target import LEARNED, spec_after
from suffice.layers import Attention
from suffice.spec import AttentionSpec

CLOSED_FORM, TRANSFER = "closed form", "attention transfer"
PASSES, RATE = 8, 2e-3  # over the calibration, and Adam's rate at the beginning
REACH = 256  # positions over which the phase of features that no longer rotate is averaged


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


def transfer(
    model: nn.Module,
    students: Mapping[str, Sequence[Attention]],
    batches: Iterable[Tensor],
    step: Callable[[int], None] = lambda _done: None,
) -> None:
    """Train layers to give the outputs of the model's layer of their name, each by itself.

    Source: Zhang et al. 2024, arXiv:2410.10254, section 3.1, with the features of Kasai et al.
    2021, arXiv:2103.13076. Differs: outputs alone are compared.
    """
    layers, batches = attention_layers(model), list(batches)
    optimiser = torch.optim.Adam(
        [p for named in students.values() for layer in named for p in layer.parameters()], lr=RATE
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, PASSES * len(batches))

    def learn(name: str, x: Tensor, call: dict[str, Any], y: Tensor) -> None:
        with torch.enable_grad():
            for layer in students[name]:
                relative_error(layer(x, **call), y, call.get("valid")).backward()

    for passed in range(PASSES):
        for done, batch in enumerate(batches, start=1):
            with observing({name: layers[name] for name in students}, learn):
                read_batch(model, batch)
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            step((passed * len(batches) + done) // PASSES)


def latent_keys(maps: Maps, spec: AttentionSpec, after: AttentionSpec, moments: Moments) -> Weights:
    """Return a layer of one latent and one rotary key that all heads share (MLA).

    Each rotary pair of the shared key is the best one in the heads' place (`shared_pair`); what it
    leaves of their keys no longer rotates: it is turned by the mean phase of the distances 0 to
    255, of which near ones count more, and made from the latent, as values are. The norm of the
    latent is left as it is: its numbers have variance 1 on the calibration.

    Source: Ji et al. 2025, arXiv:2502.14837 (partial RoPE, joint SVD of keys and values), and Meng
    et al. 2025, arXiv:2502.07864 (rotary pairs of all heads in one). Differs: the least squares are
    on data, and each pair keeps its frequency.
    """
    rope = spec.lower().rotary
    pairs, _ = rotary_pairs(rope, maps.k.shape[-1])
    keys, second = maps.per_query(maps.k), moments.second(centred=False)
    width = 2 * len(pairs)
    k_rotary, q_rotary = maps.k.new_zeros(len(second), width), maps.q[:, :, :width].clone()
    distances = torch.arange(REACH, dtype=torch.float64)
    near = 1.0 / (1.0 + distances)
    angles = rope.angles(distances, width)
    phases = (torch.polar(near[:, None].expand_as(angles), angles) / near.sum()).sum(dim=0)
    content = keys.clone()
    for (a, b), phase in zip(pairs, phases, strict=True):
        pair, q_rotary[:, :, [a, b]] = shared_pair(
            maps.q[:, :, [a, b]], keys[:, :, [a, b]], moments, bias=False
        )
        k_rotary[:, [a, b]] = pair[:-1]
        key = torch.view_as_complex(pair[:-1].contiguous())
        own = torch.view_as_complex(keys[:, :-1, [a, b]].contiguous())
        like = second.to(key.dtype) @ key.conj()
        left = own - (own @ like / (key @ like))[:, None] * key
        content[:, :-1, [a, b]] = torch.view_as_real(left * phase.conj() * rope.amplitude**2)
    values = maps.per_query(maps.v)
    basis, up = joint_basis(maps.q, content, values[:, :-1] @ maps.o, moments, after.encoder.rank)
    both = torch.cat([up @ content[:, :-1], up @ values[:, :-1]], dim=-1)  # [H, R, 2 D]
    layer = Attention(after, dtype=torch.float64)
    state = dict(layer.state_dict())
    queries = torch.cat([maps.q, q_rotary], dim=-1)
    state["q_proj.weight"] = queries[:, :-1].transpose(1, 2).flatten(0, 1)
    state["kv_a_proj.weight"] = torch.cat([basis, k_rotary], dim=1).T
    state["kv_b_proj.weight"] = both.transpose(1, 2).flatten(0, 1)
    return Weights(state=state, o=maps.o, offset=maps.offset)
