"""The branches of a model's attention, and the model with one of them switched off."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_

import torch
from torch import Tensor, nn

from suffice.layers import Attention
from suffice.mixing import NoMixing
from suffice.models import LM
from suffice.past import NoPast
from suffice.patterns import And, Or, Pattern
from suffice.spec import AttentionSpec
from suffice.view.expression import brief, expression, flat

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "features")
FAR = 1e4  # a gate that is open for good
NAMES = {"Global": "sinks, the first {tokens} tokens", "Window": "the window of {size}"}


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Something that attention does beside other things, and can be made to leave out.

    Args:
        name: in words.
        layers: numbers of the layers that have it.
        off: from a layer to what does the same without it.
    """

    name: str
    layers: tuple[int, ...]
    off: Callable[[Attention], nn.Module]


class Nothing(nn.Module):
    """Attention that adds nothing.

    Shapes:
        x: [B, T, M] -> zeros [B, T, M]
    """

    def forward(self, x: Tensor, **where: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return zeros."""
        return torch.zeros_like(x)


def branches(lm: LM) -> tuple[Branch, ...]:
    """Return what can be switched off in a model, each in all layers that have it.

    Layers of a kind, where a schedule mixes kinds; the parts that a pattern is the union of; the
    memory of earlier segments and, against it, what is heard within the segment; the map of values
    along the sequence.
    """
    found: dict[str, tuple[list[int], Callable[[Attention], nn.Module]]] = {}
    kinds = list(dict.fromkeys(lm.specs))
    for number, spec in enumerate(lm.specs):
        parts = _parts(spec)
        if len(kinds) > 1:
            parts[f"attention of layers with {kind(spec)}"] = lambda _layer: Nothing()
        for name, off in parts.items():
            found.setdefault(name, ([], off))[0].append(number)
    return tuple(
        Branch(name=name, layers=tuple(layers), off=off) for name, (layers, off) in found.items()
    )


def kind(spec: AttentionSpec) -> str:
    """Return what sets the attention of a layer apart, in code of its axes.

    Example:
        >>> from suffice import preset
        >>> kind(preset("sliding_window", 16, 4, window=8, causal=True))
        'Window(size=8) & Causal()'
        >>> kind(preset("efficient", 16, 4, causal=True))
        'Causal(), Efficient()'
    """
    told = [expression(spec.pattern)]
    if brief(spec.projections) != "Standard":
        told.append(expression(spec.projections))
    if spec.mixing.mixes:
        told.append(expression(spec.mixing))
    if brief(spec.kernel) != "Softmax":
        told.append(expression(spec.kernel))
    if spec.norm.norms:
        told.append(expression(spec.norm))
    if spec.past.reads:
        told.append(expression(spec.past))
    if spec.kv_heads != spec.num_heads:
        told.append(f"{spec.kv_heads} of {spec.num_heads} heads with keys of their own")
    return ", ".join(told)


@contextmanager
def without(lm: LM, branch: Branch) -> Iterator[LM]:
    """Switch a branch off in the block; the model is as it was afterwards."""
    kept = {number: lm.blocks[number].attention for number in branch.layers}
    try:
        for number, layer in kept.items():
            lm.blocks[number].attention = branch.off(layer).eval()
        yield lm
    finally:
        for number, layer in kept.items():
            lm.blocks[number].attention = layer


def _parts(spec: AttentionSpec) -> dict[str, Callable[[Attention], nn.Module]]:
    """Return the branches inside one layer by name."""
    found: dict[str, Callable[[Attention], nn.Module]] = {}
    for name, pattern in _unions(spec.pattern):
        found[name] = _with(pattern=pattern)
    if spec.past.reads:
        found[f"the memory of earlier segments, {expression(spec.past)}"] = _with(past=NoPast())
        found[f"what lies within the segment, {expression(spec.past)}"] = _memory_alone
    if spec.mixing.mixes:
        found[f"the map along the sequence, {expression(spec.mixing)}"] = _with(mixing=NoMixing())
    return found


def _unions(pattern: Pattern) -> list[tuple[str, Pattern]]:
    """Return each part of the unions in a pattern, with the pattern that is left without it."""
    if isinstance(pattern, Or):
        parts = flat(pattern)
        return [(_named(part), reduce(or_, [p for p in parts if p is not part])) for part in parts]
    if isinstance(pattern, And):
        parts = flat(pattern)
        return [
            (name, reduce(and_, [*parts[:at], left, *parts[at + 1 :]]))
            for at, part in enumerate(parts)
            for name, left in _unions(part)
        ]
    return []


def _named(part: Pattern) -> str:
    words = NAMES.get(type(part).__name__)
    return expression(part) if words is None else words.format(**vars(part))


def _with(**changes: object) -> Callable[[Attention], nn.Module]:
    """Return what makes a layer of another spec with the same weights."""

    def made(layer: Attention) -> Attention:
        spec = replace(layer.spec, **changes)  # type: ignore[arg-type]
        other = Attention(spec, impl=layer.impl, device="meta")
        for name in PARTS:
            setattr(other, name, getattr(layer, name))
        for name in ("mixing", "past"):
            if name not in changes:
                setattr(other, name, getattr(layer, name))
        return other

    return made


def _memory_alone(layer: Attention) -> Attention:
    """Return the layer with gates that let the memory alone be heard."""
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.past.gate.fill_(FAR)
    return other


def counts(layers: Sequence[int]) -> str:
    """Return numbers of layers in words.

    Example:
        >>> counts((2,)), counts((0, 1, 2, 5))
        ('layer 2', 'layers 0-2, 5')
    """
    runs: list[list[int]] = []
    for number in layers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {told}"
