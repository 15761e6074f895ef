"""Most bytes that a call holds at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch.autograd.profiler import profile

LOG_LEVEL = "KINETO_LOG_LEVEL"  # read once, when torch's profiler is used first


def peak_bytes(function: Callable[[], object], *, device: str = "cpu") -> int:
    """Return the most bytes torch had allocated at once during a call, above the start.

    What was allocated before does not count, what the call returns does. On the cpu every
    allocation of torch is recorded in order; on cuda the allocator's own peak is read. Call the
    function once before, so that buffers it keeps for good are not counted.

    Args:
        function: what to call, once.
        device: "cpu" or a cuda device.

    Example:
        >>> peak_bytes(lambda: torch.zeros(256))
        1024
    """
    if torch.device(device).type == "cuda":
        return _peak_cuda(function, device)
    with _silent_profiler(), profile(profile_memory=True, use_kineto=False) as recording:
        function()
    events = [e for e in recording.kineto_results.events() if e.name() == "[memory]"]
    return _peak(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))


def _peak(changes: Iterable[int]) -> int:
    """Return the highest running sum, at least 0.

    Example:
        >>> _peak([10, 20, -10, 5])
        30
    """
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
    """Read the peak of the cuda allocator around a call."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before)
