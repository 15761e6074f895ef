"""Time of calls, measured side by side so that a slow minute slows them all alike."""

from __future__ import annotations

import gc
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from time import perf_counter

from suffice.errors import ConfigError

Call = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of one function over the rounds, in seconds."""

    low: float
    median: float
    high: float


def interleave(
    functions: dict[str, Call],
    *,
    rounds: int,
    warmup: int,
    min_seconds_per_sample: float,
    device: str = "cpu",
    seed: int = 0,
    clock: Clock | None = None,
) -> dict[str, tuple[float, ...]]:
    """Return the seconds per call of functions by name, one value per interleaved round.

    Each function is called `warmup` times and then often enough to learn how many calls fill a
    sample. In each round every function gives one sample; the order is drawn from the seed and
    rotated, so that each function is at each place equally often. CUDA is synchronised around
    each sample.
    """
    if rounds < 1 or warmup < 0 or not min_seconds_per_sample > 0.0:
        raise ConfigError(
            f"rounds={rounds}, warmup={warmup}, min_seconds_per_sample={min_seconds_per_sample} "
            "cannot be timed; give rounds >= 1, warmup >= 0 and a time above 0."
        )
    clock = clock or perf_counter
    repeats = {}
    for name, call in functions.items():
        for _ in range(warmup):
            call()
        repeats[name] = _calibrate(call, min_seconds_per_sample, device, clock)
    samples: dict[str, list[float]] = {name: [] for name in functions}
    with _no_garbage_collection():
        for order in _orders(list(functions), rounds, seed):
            for name in order:
                seconds = _sample(functions[name], repeats[name], device, clock)
                samples[name].append(seconds / repeats[name])
    return {name: tuple(values) for name, values in samples.items()}


def summarise_times(samples: Sequence[float]) -> Times:
    """Return median and quartiles; one sample is all three."""
    if not samples:
        raise ConfigError("no samples to summarise; time at least one round.")
    if len(samples) == 1:
        return Times(low=samples[0], median=samples[0], high=samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Times(low=low, median=median, high=high)


def ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median over rounds of samples / baseline of the same round, see `ratios`."""
    return statistics.median(ratios(samples, baseline))


def ratios(samples: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Return samples / baseline of each round."""
    if not samples or len(samples) != len(baseline):
        raise ConfigError(
            f"{len(samples)} and {len(baseline)} rounds cannot be compared; "
            "time both in the same rounds."
        )
    return [a / b for a, b in zip(samples, baseline, strict=True)]


def _orders(names: list[str], rounds: int, seed: int) -> Iterator[list[str]]:
    """Give one order per round: a drawn order, then its rotations, then another."""
    random = Random(seed)
    order = list(names)
    for number in range(rounds):
        shift = number % max(1, len(order))
        if shift == 0:
            random.shuffle(order)
        yield order[shift:] + order[:shift]


def _calibrate(call: Call, seconds: float, device: str, clock: Clock) -> int:
    repeats = 1
    while True:
        taken = _sample(call, repeats, device, clock)
        if taken >= seconds / 2:
            return max(1, math.ceil(repeats * seconds / taken))
        repeats *= 2


def _sample(call: Call, repeats: int, device: str, clock: Clock) -> float:
    synchronise(device)
    start = clock()
    for _ in range(repeats):
        call()
    synchronise(device)
    return clock() - start


def synchronise(device: str) -> None:
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


LOG_LEVEL = "KINETO_LOG_LEVEL"  # read once, when torch's profiler is used first


def peak_bytes(function: Callable[[], object], *, device: str = "cpu") -> int:
    """Return the most bytes torch had allocated at once during a call, above the start.

    Buffers that the first call keeps for good count: call it once before.
    """
    import torch
    from torch.autograd.profiler import profile

    if torch.device(device).type == "cuda":
        return _peak_cuda(function, device)
    with _silent_profiler(), profile(profile_memory=True, use_kineto=False) as recording:
        function()
    events = [e for e in recording.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes, initial=0))


@contextmanager
def _silent_profiler() -> Iterator[None]:
    """Keep torch's profiler from writing to the terminal, unless a level was set already."""
    was_set = LOG_LEVEL in os.environ
    os.environ.setdefault(LOG_LEVEL, "6")
    try:
        yield
    finally:
        if not was_set:
            del os.environ[LOG_LEVEL]


def _peak_cuda(function: Callable[[], object], device: str) -> int:
    import torch

    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before)
