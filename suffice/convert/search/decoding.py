"""How long the step of one token takes on this machine: of a layer, and of a whole model.

A step runs in one of two ways. Natively the whole model steps in one call, where every layer's kind
is known to native code, and keeps all that was read. Through torch each layer may be of any kind
and forget what it no longer sees. All that is timed is timed in turn, round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from suffice.convert.search.costs import memory_of
from suffice.measure.timing import Times, interleave, summarise_times
from suffice.memory import Dynamic
from suffice.models import LM
from suffice.models.fusable import why_not
from suffice.models.fused import Fused
from suffice.models.state import ModelState
from suffice.spec import AttentionSpec

NATIVE, TORCH = "native", "torch"
WAYS = (NATIVE, TORCH)
DEPTH = 2  # layers of one kind that are timed together
ROUNDS, WARMUP, SECONDS = 15, 2, 2e-3
PREFILL = 512  # tokens read at once

Samples = tuple[float, ...]
Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Steps of layers of some kinds behind texts of several lengths.

    Args:
        lengths: tokens, the last one is where plans are compared.
        layers: by way and kind, for each length: seconds of one layer more than nothing, a time
            that is only compared with another's; a way that a kind has not is absent.
    """

    lengths: tuple[int, ...]
    layers: Mapping[tuple[str, AttentionSpec], tuple[Times, ...]]


def added(seconds: float, before: float, share: float) -> float:
    """Return what one kind of layer instead of another adds to a step.

    It never saves more than the layer's share of a step, whatever noise says.

    Args:
        seconds: of a layer of the one kind, as timed.
        before: of the other kind.
        share: of the step of a whole model that is one layer's.

    Example:
        >>> added(3.0, 2.0, 1.0), added(1.0, 2.0, 8.0), added(1.0, 5.0, 1.0)
        (1.0, -1.0, -0.8)
    """
    if seconds >= before:
        return seconds - before
    return -min(before - seconds, share * (1.0 - seconds / before))


def lengths_up_to(length: int) -> tuple[int, ...]:
    """Return the lengths at which steps are timed.

    Example:
        >>> lengths_up_to(512), lengths_up_to(20)
        ((32, 128, 512), (5, 20))
    """
    return tuple(n for n in (length // 16, length // 4, length) if n > 1)


def time_layers(
    lm: LM,
    specs: Sequence[AttentionSpec],
    length: int,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> Timed:
    """Time layers of some kinds in models of the sizes of another.

    Args:
        lm: whose sizes are taken.
        specs: the kinds.
        length: the longest text, tokens.
        step: told how many lengths of how many are done.
    """
    lengths = lengths_up_to(length)
    found: dict[tuple[str, AttentionSpec], list[Times]] = {}
    probes = {spec: _probe(lm, spec) for spec in specs}
    for done, at in enumerate(lengths, start=1):
        calls = {
            (way, spec): call
            for spec, probe in probes.items()
            for way in WAYS
            if (call := stepper(probe, at, way)) is not None
        }
        for key, samples in _timed(calls, lm.device, ROUNDS).items():
            each = [seconds / DEPTH for seconds in samples]
            found.setdefault(key, []).append(summarise_times(each))
        step(done, len(lengths))
    return Timed(lengths=lengths, layers={key: tuple(times) for key, times in found.items()})


def time_models(
    calls: Mapping[str, Call], device: torch.device, rounds: int | None = None
) -> dict[str, Samples]:
    """Return the seconds of a step of whole models in each round, by name."""
    return _timed(dict(calls), device, rounds or ROUNDS)


def stepper(lm: LM, length: int, way: str) -> Call | None:
    """Return what steps one token behind a text; None where a model does not step this way.

    The state is as it was after each call.

    Args:
        lm: the model, in evaluation.
        length: of the text with that token.
        way: "native" or "torch".
    """
    if way == NATIVE and why_not(lm, Dynamic()):
        return None
    state = lm.state(Dynamic()) if way == NATIVE else forgetting(lm)
    model = Fused(lm, Dynamic()) if way == NATIVE else lm
    read(lm, state, length - 1)
    token = torch.zeros(1, dtype=torch.int64, device=lm.device)

    @torch.inference_mode()
    def call() -> None:
        model.step(token, state)
        state.drop_last(1)

    return call


def forgetting(lm: LM) -> ModelState:
    """Return an empty state in which each layer keeps only what it can still see."""
    return ModelState(
        [block.attention.state(memory_of(block.attention.spec)) for block in lm.blocks]
    )


@torch.inference_mode()
def read(lm: LM, state: ModelState, length: int) -> None:
    """Read a text of a length into a state."""
    ids = torch.arange(length)[None] % lm.config.vocabulary_size
    for piece in ids.split(PREFILL, dim=1):
        lm.features(piece.to(lm.device), state=state)


def _timed(calls: dict[Any, Call], device: torch.device, rounds: int) -> dict[Any, Samples]:
    """Time calls in turn."""
    once = {"warmup": WARMUP, "min_seconds_per_sample": SECONDS, "device": str(device)}
    return interleave(calls, rounds=rounds, **once)


def _probe(lm: LM, spec: AttentionSpec) -> LM:
    """Return a small model of layers of one kind; what is not attention is the same for all."""
    sizes = lm.config
    small = {
        "depth": DEPTH,
        "vocabulary_size": min(sizes.vocabulary_size, 256),
        "mlp_width": min(sizes.mlp_width, sizes.d_model),
        "dropout": 0.0,
    }
    made = {"device": lm.device, "dtype": lm.norm.weight.dtype}
    return replace(sizes, **small).build(replace(spec, dropout=0.0), **made).eval()
