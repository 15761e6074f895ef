"""Times decoding steps: of layers in small models, and of whole models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from suffice.convert.search.options import memory_of
from suffice.memory import Dynamic
from suffice.models import LM
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.models.state import ModelState
from suffice.spec import AttentionSpec
from suffice.utils.timing import Times, interleave, summarise_times

NATIVE, TORCH = "native", "torch"
BACKENDS = (NATIVE, TORCH)
DEPTH = 2  # layers of a small model
ROUNDS, WARMUP, SECONDS = 15, 2, 2e-3
PREFILL = 512  # tokens of a chunk

Call = Callable[[], object]
Samples = tuple[float, ...]


def lengths_up_to(length: int) -> tuple[int, ...]:
    """Return the lengths at which steps are timed: a sixteenth, a quarter and all of a length."""
    return tuple(n for n in (length // 16, length // 4, length) if n > 1)


def time_layers(
    lm: LM,
    specs: Sequence[AttentionSpec],
    length: int,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[tuple[str, AttentionSpec], list[Times]]:
    """Return seconds of one layer in a step, by backend and spec, at each of `lengths_up_to`."""
    lengths = lengths_up_to(length)
    times: dict[tuple[str, AttentionSpec], list[Times]] = {}
    models = {spec: _small_model(lm, spec) for spec in specs}
    for done, tokens in enumerate(lengths, start=1):
        calls = {
            (backend, spec): call
            for spec, model in models.items()
            for backend in BACKENDS
            if (call := stepper(model, tokens, backend)) is not None
        }
        samples_of = time_calls(calls, lm.device)
        for key, samples in samples_of.items():
            backend, spec = key
            per_layer = [seconds / DEPTH for seconds in samples]
            if spec.shares is not None:  # the other layer of the small model makes the keys
                makers = samples_of[backend, replace(spec, shares=None)]
                pairs = zip(samples, makers, strict=True)
                per_layer = [both - maker / DEPTH for both, maker in pairs]
            times.setdefault(key, []).append(summarise_times(per_layer))
        step(done, len(lengths))
    return times


def _small_model(lm: LM, spec: AttentionSpec) -> LM:
    """Return a model of equal layers that differs in attention alone; a maker precedes sharing."""
    sizes = replace(
        lm.config,
        depth=DEPTH,
        vocabulary_size=min(lm.config.vocabulary_size, 256),
        mlp_width=min(lm.config.mlp_width, lm.config.d_model),
        dropout=0.0,
        experts=None,
    )
    place = {"device": lm.device, "dtype": lm.norm.weight.dtype}
    spec = replace(spec, dropout=0.0)
    makers = [replace(spec, shares=None)] * (DEPTH - 1)
    return sizes.build([*makers, spec], **place).eval()


def timed_as(spec: AttentionSpec) -> AttentionSpec:
    """Return what a layer is timed as: whose keys and values it shares makes no difference."""
    return spec if spec.shares is None else replace(spec, shares=0)


def time_calls(
    calls: Mapping[Any, Call], device: torch.device, rounds: int | None = None
) -> dict[Any, Samples]:
    """Return the seconds of each call in each round; calls take turns."""
    return interleave(
        dict(calls),
        rounds=rounds or ROUNDS,
        warmup=WARMUP,
        min_seconds_per_sample=SECONDS,
        device=str(device),
    )


def stepper(lm: LM, length: int, backend: str) -> Call | None:
    """Return a repeatable call that decodes one token after a text; None if the backend cannot."""
    if backend == NATIVE and unsupported(lm, Dynamic()):
        return None
    state = state_for(lm, backend)
    decoder = NativeDecoder(lm, Dynamic()) if backend == NATIVE else lm
    prefill(lm, state, length - 1)
    token = torch.zeros(1, dtype=torch.int64, device=lm.device)

    @torch.inference_mode()
    def call() -> None:
        decoder.step(token, state)
        state.drop_last(1)

    return call


def state_for(lm: LM, backend: str) -> ModelState:
    """Return an empty state; torch drops positions out of reach, native decoding keeps all."""
    if backend == NATIVE:
        return lm.state(Dynamic())
    return ModelState(
        [block.attention.state(memory_of(block.attention.spec)) for block in lm.blocks]
    )


@torch.inference_mode()
def prefill(lm: LM, state: ModelState, length: int) -> None:
    ids = torch.arange(length)[None] % lm.config.vocabulary_size
    for chunk in ids.split(PREFILL, dim=1):
        lm.features(chunk.to(lm.device), state=state)


def added_seconds(seconds: float, before: float, share: float) -> float:
    """Return the seconds that one layer instead of another adds to a step of a whole model.

    It never saves more than the layer's share of the step, whatever the noise.

    Example:
        >>> added_seconds(3.0, 2.0, 1.0), added_seconds(1.0, 2.0, 8.0), added_seconds(1.0, 5.0, 1.0)
        (1.0, -1.0, -0.8)
    """
    if seconds >= before:
        return seconds - before
    return -min(before - seconds, share * (1.0 - seconds / before))
