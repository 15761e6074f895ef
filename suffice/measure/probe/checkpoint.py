"""A trained language model probed as it is: what it recalls, and what each branch is for."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.inputs import SharedKV
from suffice.measure.model_recall import Questions, ask, passkey, repeated, scores
from suffice.measure.probe.mechanisms import receptive_field
from suffice.measure.probe.report import Report
from suffice.measure.statistics import Summary, summarise
from suffice.memory.past import NoPast
from suffice.mixing import NoMixing
from suffice.models import LM
from suffice.patterns import And, Or, Pattern
from suffice.spec import AttentionSpec
from suffice.view.drawing import brief, expression, flat

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "features")
FAR = 1e4  # a gate that is open for good
NAMES = {"Global": "sinks, the first {tokens} tokens", "Window": "the window of {size}"}


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Something that attention does beside other things, and can be made to leave out."""

    name: str  # in words
    layers: tuple[int, ...]  # numbers of the layers that have it
    off: Callable[[Attention], nn.Module]  # from a layer to what does the same without it


class Nothing(nn.Module):
    """Attention that adds nothing; keys and values that other layers share are still made."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *, shared: SharedKV | None = None, **where: Any) -> Tensor:
        """Return zeros."""
        if shared is not None and self.layer.spec.shares is None:
            self.layer(x, shared=shared, **where)
        return torch.zeros_like(x)


def branches(lm: LM) -> tuple[Branch, ...]:
    """Return what can be switched off in a model, each in all layers that have it.

    Layers of a kind, where a schedule mixes kinds; the parts that a pattern is the union of; the
    memory of earlier segments and, against it, attention within the segment; the map of values
    along the sequence.
    """
    by_name: dict[str, tuple[list[int], Callable[[Attention], nn.Module]]] = {}
    kinds = list(dict.fromkeys(lm.specs))
    for number, spec in enumerate(lm.specs):
        parts = _parts(spec)
        if len(kinds) > 1:
            parts[f"attention of layers with {kind(spec)}"] = Nothing
        for name, off in parts.items():
            by_name.setdefault(name, ([], off))[0].append(number)
    return tuple(
        Branch(name=name, layers=tuple(layers), off=off) for name, (layers, off) in by_name.items()
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
    axes = (
        (spec.encoder, brief(spec.encoder) != "Standard"),
        (spec.mixing, "mixing" in spec.beyond_pairs),
        (spec.kernel, brief(spec.kernel) != "Softmax"),
        (spec.norm, spec.norm.norms),
        (spec.past, "past" in spec.beyond_pairs),
    )
    names = [expression(spec.pattern), *(expression(axis) for axis, differs in axes if differs)]
    if spec.kv_heads != spec.num_heads:
        names.append(f"{spec.kv_heads} of {spec.num_heads} heads with keys of their own")
    if "shares" in spec.beyond_pairs:
        names.append("keys and values of another layer")
    return ", ".join(names)


@contextmanager
def without(lm: LM, branch: Branch) -> Iterator[LM]:
    """Switch a branch off in the block; the model is as it was afterwards."""
    layers = {number: lm.blocks[number].attention for number in branch.layers}
    try:
        for number, layer in layers.items():
            lm.blocks[number].attention = branch.off(layer).eval()
        yield lm
    finally:
        for number, layer in layers.items():
            lm.blocks[number].attention = layer


def _parts(spec: AttentionSpec) -> dict[str, Callable[[Attention], nn.Module]]:
    parts: dict[str, Callable[[Attention], nn.Module]] = {}
    for name, pattern in _unions(spec.pattern):
        parts[name] = _with(pattern=pattern)
    if "past" in spec.beyond_pairs:
        parts[f"the memory of earlier segments, {expression(spec.past)}"] = _with(past=NoPast())
        parts[f"what lies within the segment, {expression(spec.past)}"] = _memory_alone
    if "mixing" in spec.beyond_pairs:
        parts[f"the map along the sequence, {expression(spec.mixing)}"] = _with(mixing=NoMixing())
    return parts


def _unions(pattern: Pattern) -> list[tuple[str, Pattern]]:
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
    def made(layer: Attention) -> Attention:
        spec = replace(layer.spec, **changes)  # type: ignore[arg-type]
        other = Attention(spec, impl=layer.impl, device="meta")
        for name in PARTS:
            if hasattr(layer, name):  # layers that share have no maps of keys and values
                setattr(other, name, getattr(layer, name))
        for name in ("mixing", "past"):
            if name not in changes:
                setattr(other, name, getattr(layer, name))
        return other

    return made


def _memory_alone(layer: Attention) -> Attention:
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
    numbers = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {numbers}"


SHORTEST = 16  # tokens of a stretch that comes again, and symbols there have to be
ABLATED = 32  # tokens of the stretch that branches are judged by
DEPTHS, QUICK_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0)
ROWS, QUICK_ROWS = 32, 16  # of each seed
NOTHING = 0.005  # nats
TOGETHER = 8  # rows of text computed at once

Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The accuracy lost when a branch is disabled."""

    branch: str  # its name
    layers: str  # those that have it, in words
    on: str  # what the loss is of
    before: float  # the mean loss with it, nats per token
    change: Summary  # of the loss without it, paired by row; above 0 where the branch helps

    @property
    def verdict(self) -> str:
        """A verdict in a few words."""
        low, high = (
            self.change.mean if end is None else end for end in (self.change.low, self.change.high)
        )
        if max(abs(low), abs(high)) < NOTHING:
            return "its removal changes nothing"
        if low <= 0.0 <= high:
            return "no difference found"
        return "needed" if low > 0.0 else "better without"


def probe_checkpoint(
    lm: LM,
    symbols: Sequence[int],
    *,
    begin: int | None = None,
    text: Tensor | None = None,
    quick: bool = False,
    seeds: int = 3,
    step: Step = lambda _what, _done, _total: None,
) -> Report:
    """Measure a trained model's recall of repeated random tokens, and ablate its branches.

    Args:
        lm: in evaluation.
        symbols: ids of tokens that rows are drawn from, at least 16.
        begin: the token that its texts begin with, if any.
        text: rows that branches are judged by too, int [B, T], all but the first token predicted.
        quick: fewer rows, lengths and depths.
        seeds: times 32 rows (16 if quick) are behind each figure.
        step: called with the part, how much of it is done, and the total.

    Raises:
        ConfigError: if there are too few symbols or seeds, or the model reads too few tokens.
    """
    clock = time.monotonic()
    if seeds < 1:
        raise ConfigError(f"seeds={seeds}; give at least 1.")
    least = min(len(symbols), lm.config.length // 2)
    if least < SHORTEST:
        raise ConfigError(
            f"a model of {lm.config.length} tokens and {len(symbols)} symbols is too small to be "
            f"probed by rows of them; it takes {2 * SHORTEST} tokens and {SHORTEST} symbols."
        )
    rows = seeds * (QUICK_ROWS if quick else ROWS)
    ids = torch.tensor(symbols)
    batches = list(_questions(lm, ids, begin, rows, quick))
    recalls = []
    for done, questions in enumerate(batches, start=1):
        recalls.append(ask(lm, questions))
        step("recall", done, len(batches))
    ablations = _ablations(lm, _measures(lm, ids, begin, rows, text), step)
    facts = {"reach": receptive_field(lm.specs), "rows": rows}
    return Report.of("checkpoint", clock, facts, recalls=recalls, ablations=ablations)


def _questions(
    lm: LM, symbols: Tensor, begin: int | None, rows: int, quick: bool
) -> Iterator[Questions]:
    room = lm.config.length - (begin is not None)
    sizes: dict[str, Any] = {"rows": rows, "begin": begin}
    for length in _doubled(SHORTEST, min(room // 2, len(symbols)), quick):
        for shuffled in (False, True):
            yield repeated(symbols, length=length, shuffled=shuffled, **sizes)
    for length in _doubled(2 * SHORTEST, lm.config.length, quick):
        for depth in QUICK_DEPTHS if quick else DEPTHS:
            yield passkey(symbols, length=length, depth=depth, **sizes)
        yield passkey(symbols, length=length, depth=0.5, shuffled=True, **sizes)


def _doubled(first: int, last: int, quick: bool) -> list[int]:
    """Return first, twice that, ... as far as last; if quick, the shortest and the longest."""
    lengths = [first]
    while 2 * lengths[-1] <= last:
        lengths.append(2 * lengths[-1])
    return list(dict.fromkeys([lengths[0], lengths[-1]])) if quick else lengths


Measure = Callable[[LM], list[float]]


def _measures(
    lm: LM, symbols: Tensor, begin: int | None, rows: int, text: Tensor | None
) -> dict[str, Measure]:
    room = (lm.config.length - (begin is not None)) // 2
    length = min(ABLATED, len(symbols), room)
    again = repeated(symbols, length=length, rows=rows, begin=begin)
    measures: dict[str, Measure] = {
        f"{length} tokens again": lambda model: scores(model, again)[1],
    }
    if text is not None:
        measures = {"text": lambda model: _losses(model, text), **measures}
    return measures


def _ablations(lm: LM, measures: dict[str, Measure], step: Step) -> Iterator[Ablation]:
    switchable = branches(lm)
    if not switchable:
        return
    intact = {on: measure(lm) for on, measure in measures.items()}
    for done, branch in enumerate(switchable, start=1):
        with without(lm, branch):
            off = {on: measure(lm) for on, measure in measures.items()}
        for on, before in intact.items():
            pairs = zip(before, off[on], strict=True)
            yield Ablation(
                branch=branch.name,
                layers=counts(branch.layers),
                on=on,
                before=sum(before) / len(before),
                change=summarise([after - row for row, after in pairs]),
            )
        step("branches", done, len(switchable))


@torch.inference_mode()
def _losses(lm: LM, rows: Tensor) -> list[float]:
    losses: list[float] = []
    for batch in rows.to(lm.device).split(TOGETHER):
        logits = lm(batch[:, :-1]).float().transpose(1, 2)
        each = F.cross_entropy(logits, batch[:, 1:], reduction="none")
        losses += each.double().mean(dim=1).tolist()
    return losses
