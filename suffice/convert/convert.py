"""Convert a model to cheaper attention, with a certificate of the differences.

Layers are converted independently: each is fitted on its inputs and outputs in the original model,
so that any choices for different layers can be combined.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

from suffice.convert.calibration import Moments, attention_layers, collect_moments
from suffice.convert.certificate import (
    Certificate,
    LayerCertificate,
    LossChange,
    change_of_loss,
    row_losses,
)
from suffice.convert.exact import Change, changes
from suffice.convert.feature_permutation import permuted_for
from suffice.convert.fit import Fit, fit, output_errors, starts
from suffice.convert.maps import build
from suffice.convert.sharing import fit_groups, groups_of, kept, least_error
from suffice.convert.target import Target, plan_of
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.spec import AttentionSpec

STACKS = {
    "specs": ("blocks", "attention"),
    "encoder_specs": ("encoder", "attention"),
    "decoder_specs": ("decoder", "attention"),
    "cross_specs": ("decoder", "cross"),
}
"""Attributes of models with the specs of the layers of their blocks."""

M = TypeVar("M", bound=nn.Module)
Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Converted(Generic[M]):
    """The result of `convert`."""

    model: M  # model with the converted layers
    certificate: Certificate  # certificate of the conversion


def convert(
    model: M,
    target: Target,
    *,
    calibration: Sequence[Tensor] | None = None,
    held_out: Sequence[Tensor] | None = None,
    naive: bool = False,
    step: Step = lambda _stage, _done, _total: None,
) -> Converted[M]:
    """Return a copy of a model with its attention layers converted to a target.

    Where that is possible exactly, the maps of a layer are rewritten and the result is proven;
    otherwise they are fitted in closed form to the layer's inputs on the calibration, and its
    output map is refitted last.

    Args:
        model: a model of `suffice.models`, or any module with `suffice.Attention` layers in it.
        target: such as "gqa:2" or "mqa,window:64+sinks" for all layers, a list with one target for
            each, or targets by the names of the modules.
        calibration: batches that the model is called with, twice. None: only exact and naive
            conversions are possible.
        held_out: batches to measure the change on; for a language model rows of tokens, of which
            each but the first is predicted.
        naive: whether to take the usual starts (means of heads, no maps) where a layer cannot be
            converted exactly, and fit nothing.
        step: function called with the stage, and how much of it is done.

    Raises:
        ConfigError: if the target is not legal or not possible for a layer, or a layer has to be
            fitted and there is no calibration.
        DataError: if the calibration holds no batch.

    Example:
        >>> import torch
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=16, depth=2, mlp_width=32)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 16, 4, causal=True))
        >>> converted = convert(lm, "standard")
        >>> converted.certificate.kind, converted.model.specs[0].encoder
        ('exact', Standard())
    """
    tensors = (*model.parameters(), *model.buffers())
    original = copy.deepcopy(model, {id(one): one for one in tensors}).eval()  # shares them
    planned = changes(original, plan_of(original, target))
    changed = {n: one for n, one in planned.items() if one.maps is None and not one.unchanged}
    sharing = {n: one for n, one in changed.items() if one.steps[0].name == "share"}
    inexact = {n: one for n, one in changed.items() if n not in sharing}
    fits: dict[str, Fit] = {}
    _check_calibration(changed, calibration, naive)
    if inexact:
        original, fits = _fits(original, inexact, calibration, naive, step)
    if sharing:
        fits |= _shared_fits(original, planned, calibration, naive, step)
        planned |= {n: kept(one) for n, one in sharing.items() if n not in fits}
    attention = attention_layers(original)
    maps = {name: fits[name].maps if name in fits else one.maps for name, one in planned.items()}
    layers = {
        name: build(one, planned[name].spec, like=attention[name])
        for name, one in maps.items()
        if one is not None
    }
    converted = with_layers(original, layers).train(model.training)
    approximate = {name: layers[name].eval() for name in fits}
    measured, loss = _judged(original, converted, approximate, list(held_out or ()), step)
    attention = attention_layers(model)
    read = calibration if fits and calibration is not None else ()
    certificate = Certificate(
        layers=tuple(
            _certify(name, attention[name], one, fits.get(name), measured.get(name))
            for name, one in planned.items()
        ),
        naive=naive,
        calibration_tokens=sum(batch.shape[0] * batch.shape[1] for batch in read),
        loss=loss,
    )
    return Converted(model=converted, certificate=certificate)


def _fits(
    model: M,
    inexact: Mapping[str, Change],
    calibration: Sequence[Tensor] | None,
    naive: bool,
    step: Step,
) -> tuple[M, dict[str, Fit]]:
    length = getattr(getattr(model, "config", None), "length", None)
    moments: Mapping[str, Moments | None] = dict.fromkeys(inexact)
    total = len(calibration or ())
    if calibration is not None and not naive:
        moments = dict.fromkeys(inexact, Moments(0))
        layers = {name: one.layer for name, one in inexact.items() if one.reads_moments}
        if layers:
            moments |= collect_moments(
                model, layers, calibration, lambda done: step("reading", done, total)
            )
        model, moments = permuted_for(model, inexact, moments)
    layers = attention_layers(model)
    candidates = {
        name: (name, one, starts(one, layers[name], moments[name], length))
        for name, one in inexact.items()
    }
    if calibration is None:
        return model, {
            name: Fit(maps=maps, chosen=start, error=None)
            for name, _, of_layer in candidates.values()
            for start, maps in of_layer.items()
        }
    fits = fit(
        model,
        candidates,
        calibration,
        refit=not naive,
        step=lambda done: step("fitting", done, total),
    )
    return model, fits


def _shared_fits(
    model: nn.Module,
    planned: Mapping[str, Change],
    calibration: Sequence[Tensor] | None,
    naive: bool,
    step: Step,
) -> dict[str, Fit]:
    total = len(calibration or ())
    options = fit_groups(
        model,
        groups_of(planned),
        planned,
        calibration,
        naive=naive,
        step=lambda stage, done: step(stage, done, total),
    )
    if len(options) == 1:
        (fits,) = options.values()
        return fits
    if not isinstance(model, LM):
        return options[least_error(options)]
    layers, losses = attention_layers(model), {}
    for start, fits in options.items():
        built = {n: build(f.maps, planned[n].spec, like=layers[n]) for n, f in fits.items()}
        variant = with_layers(model, built)
        losses[start] = sum(sum(row_losses(variant, batch)) for batch in calibration or ())
    return options[min(losses, key=lambda start: losses[start])]


def _check_calibration(
    changed: Mapping[str, Change], calibration: Sequence[Tensor] | None, naive: bool
) -> None:
    if changed and calibration is None and not naive:
        name, one = next(iter(changed.items()))
        raise ConfigError(
            f"{name or 'the layer'} cannot become {one.words} exactly and would have to be "
            "fitted; give calibration text or inputs (--calibration), or naive=True (--naive)."
        )


def with_layers(model: M, layers: Mapping[str, Attention]) -> M:
    """Return a copy of a model with other layers by name; "" replaces the model itself."""
    if "" in layers:
        return cast("M", layers[""])
    model = copy.deepcopy(model)
    for name, layer in layers.items():
        replace_module(model, name, layer)
    for specs, (blocks, attention) in STACKS.items():
        if hasattr(model, specs):
            listed = [getattr(block, attention).spec for block in getattr(model, blocks)]
            setattr(model, specs, listed)
    return model


def state_of(spec: AttentionSpec) -> int:
    """Return the numbers that a layer's state holds per token."""
    if not spec.pattern.causal:
        return 2 * spec.widths.kv
    return spec.cost(1).state_numbers


def _certify(
    name: str, layer: Attention, change: Change, fitted: Fit | None, measured: float | None
) -> LayerCertificate:
    return LayerCertificate(
        name=name,
        target=change.words,
        exact=fitted is None,
        difference=0.0 if change.unchanged else change.difference,
        predicted=None if fitted is None else fitted.error,
        measured=measured,
        chosen="" if fitted is None else fitted.chosen,
        exact_up_to=change.exact_up_to,
        state_before=state_of(layer.spec),
        state_after=state_of(change.spec),
        parameters_before=layer.spec.cost(1).parameters,
        parameters_after=change.spec.cost(1).parameters,
    )


def _judged(
    original: nn.Module,
    converted: nn.Module,
    approximate: Mapping[str, Attention],
    batches: Sequence[Tensor],
    step: Step,
) -> tuple[Mapping[str, float], LossChange | None]:
    """Return the errors of layers and the change of the loss; each model reads the text once."""
    if not batches:
        return {}, None
    if not isinstance(original, LM) or not isinstance(converted, LM):
        return output_errors(original, approximate, batches), None
    losses: dict[nn.Module, list[float]] = {original: [], converted: []}

    def read(lm: nn.Module, rows: Tensor) -> None:
        losses[lm] += row_losses(cast("LM", lm), rows, whole=True)
        step("judging", sum(map(len, losses.values())), 2 * sum(map(len, batches)))

    measured = output_errors(original, approximate, batches, read)
    training = converted.training
    converted.eval()
    for rows in batches:
        read(converted, rows)
    converted.train(training)
    tokens = sum(rows[:, 1:].numel() for rows in batches)
    return measured, change_of_loss(losses[original], losses[converted], tokens)
