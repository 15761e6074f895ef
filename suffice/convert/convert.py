"""`convert`: a model with cheaper attention, and a certificate of what that changed.

Layers are converted one by one and apart: each is fitted on what the model as it was reads and
gives there, so that any two choices can be combined.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from suffice.convert.calibration import attentions, gather
from suffice.convert.certificate import (
    Certificate,
    LayerCertificate,
    LossChange,
    change_of_loss,
    row_losses,
)
from suffice.convert.exact import Change, changes
from suffice.convert.feature_permutation import arranged
from suffice.convert.fit import Fit, errors, fit, starts
from suffice.convert.maps import build
from suffice.convert.target import Target, plan_of
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.state import LayerState
from suffice.memory import Dynamic
from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.spec import AttentionSpec

STACKS = {
    "specs": ("blocks", "attention"),
    "encoder_specs": ("encoder", "attention"),
    "decoder_specs": ("decoder", "attention"),
    "cross_specs": ("decoder", "cross"),
}
"""Where models list the compositions of which layers of which blocks."""


def replaced(model: nn.Module, layers: Mapping[str, Attention]) -> nn.Module:
    """Return a copy of a model with other attention layers; it lists their compositions, too.

    Args:
        model: any.
        layers: by the names of the modules they replace; "" is the model itself.
    """
    if "" in layers:
        return layers[""]
    other = copy.deepcopy(model)
    for name, layer in layers.items():
        replace_module(other, name, layer)
    for specs, (blocks, attention) in STACKS.items():
        if hasattr(other, specs):
            found = [getattr(block, attention).spec for block in getattr(other, blocks)]
            setattr(other, specs, found)
    return other


def state_of(spec: AttentionSpec) -> int:
    """Return the numbers a layer's state keeps of each token of a text."""
    width = spec.widths.kv
    if not spec.pattern.causal:
        return 2 * width
    state = LayerState(spec, Dynamic())
    return width * ((1 if state.tied else 2) + (state.raw is not None))


Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What `convert` made.

    Args:
        model: with the layers that were asked for.
        certificate: what that changed.
    """

    model: nn.Module
    certificate: Certificate


def convert(
    model: nn.Module,
    target: Target,
    *,
    calibration: Sequence[Tensor] | None = None,
    held_out: Sequence[Tensor] | None = None,
    naive: bool = False,
    step: Step = lambda _what, _done, _total: None,
) -> Converted:
    """Return a copy of a model whose attention layers are what a target names.

    Where a layer can become that exactly, its maps are rewritten and that is proven; else they are
    found in closed form from what the layer reads of the calibration, and its output map is fitted
    again last.

    Args:
        model: a model of `suffice.models`, or any module with `suffice.Attention` layers in it.
        target: words such as "gqa:2" or "mqa,window:64+sinks" for all layers, a list with words
            for each, or words by the names of the modules.
        calibration: batches that the model is called with; gone through twice. None = nothing is
            read, and only exact conversions and naive ones are possible.
        held_out: batches on which the change is measured; for a language model rows of tokens, of
            which each but the first is predicted.
        naive: take the usual starts (means of heads, maps left out) where a layer cannot be had
            exactly, and fit nothing.
        step: told what is done, and how much of it.

    Raises:
        ConfigError: if the words are not legal, a layer cannot become what they say, or one would
            have to be fitted and there is no calibration.
        DataError: if the calibration holds no batch.

    Example:
        >>> import torch
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=16, depth=2, mlp_width=32)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 16, 4, causal=True))
        >>> found = convert(lm, "standard")
        >>> found.certificate.kind, found.model.specs[0].encoder
        ('exact', Standard())
    """
    source = copy.deepcopy(model).eval()
    plan = plan_of(source, target)
    asked = changes(source, plan)
    inexact = {n: one for n, one in asked.items() if one.maps is None and not one.kept}
    fits: dict[str, Fit] = {}
    if inexact:
        source, fits = _fits(source, inexact, calibration, naive, step)
    layers = _layers(source, asked, fits)
    made = replaced(source, layers).train(model.training)
    judged = list(held_out or ())
    measured = errors(source, _still(layers, inexact), judged) if judged else {}
    own = attentions(model)
    certificate = Certificate(
        layers=tuple(
            _certified(name, own[name], one, fits.get(name), measured.get(name))
            for name, one in asked.items()
        ),
        naive=naive,
        calibration_tokens=_tokens(calibration) if inexact else 0,
        loss=_loss(source, made, judged, step),
    )
    return Converted(model=made, certificate=certificate)


def _fits(
    source: nn.Module,
    inexact: Mapping[str, Change],
    calibration: Sequence[Tensor] | None,
    naive: bool,
    step: Step,
) -> tuple[nn.Module, dict[str, Fit]]:
    """Return the model with its features in the order that suits, and the fits of its layers."""
    size = getattr(getattr(source, "config", None), "length", None)
    if calibration is None:
        if not naive:
            name, one = next(iter(inexact.items()))
            raise ConfigError(
                f"{name or 'the layer'} cannot become {one.words} exactly and would have to be "
                "fitted; give calibration text or inputs (--calibration), or naive=True (--naive)."
            )
        own = attentions(source)
        begun = {n: starts(one, own[n], None, size) for n, one in inexact.items()}
        return source, {
            name: Fit(maps=maps, chosen=called, error=None)
            for name, of_layer in begun.items()
            for called, maps in of_layer.items()
        }
    total = len(calibration)
    own = {name: attentions(source)[name] for name in inexact}
    moments = gather(source, own, calibration, lambda done: step("reading", done, total))
    if not naive:
        source, moments = arranged(source, inexact, moments)
        own = {name: attentions(source)[name] for name in inexact}
    begun = {
        name: starts(one, own[name], None if naive else moments[name], size)
        for name, one in inexact.items()
    }
    found = fit(
        source,
        begun,
        inexact,
        calibration,
        refit=not naive,
        step=lambda done: step("fitting", done, total),
    )
    return source, found


def _layers(
    source: nn.Module, asked: Mapping[str, Change], fits: Mapping[str, Fit]
) -> dict[str, Attention]:
    """Return the layers that replace those of a model."""
    own, layers = attentions(source), {}
    for name, one in asked.items():
        maps = fits[name].maps if name in fits else one.maps
        if maps is not None:
            layers[name] = build(maps, one.spec, like=own[name])
    return layers


def _still(layers: Mapping[str, Attention], inexact: Mapping[str, Any]) -> dict[str, Attention]:
    return {name: layers[name].eval() for name in inexact}


def _certified(
    name: str, layer: Attention, change: Change, found: Fit | None, measured: float | None
) -> LayerCertificate:
    costs = [spec.cost(1).parameters for spec in (layer.spec, change.spec)]
    states = [state_of(spec) for spec in (layer.spec, change.spec)]
    return LayerCertificate(
        name=name,
        target=change.words,
        exact=found is None,
        difference=0.0 if change.kept else change.difference,
        predicted=None if found is None else found.error,
        measured=measured,
        chosen="" if found is None else found.chosen,
        exact_up_to=change.exact_up_to,
        state_before=states[0],
        state_after=states[1],
        parameters_before=costs[0],
        parameters_after=costs[1],
    )


def _loss(
    source: nn.Module, made: nn.Module, judged: Sequence[Tensor], step: Step
) -> LossChange | None:
    if not judged or not isinstance(source, LM):
        return None
    mode, before, after = made.training, [], []
    made.eval()
    for done, rows in enumerate(judged, start=1):
        before += row_losses(source, rows)
        after += row_losses(made, rows)
        step("judging", done, len(judged))
    made.train(mode)
    return change_of_loss(before, after, sum(rows[:, 1:].numel() for rows in judged))


def _tokens(calibration: Sequence[Tensor] | None) -> int:
    """Return the positions that were read, of rows of tokens or of features."""
    return sum(batch.shape[0] * batch.shape[1] for batch in calibration or ())
