"""Steps of several processes that fail together when one of them fails.

Under torchrun a process that leaves alone would keep the others waiting, and its reason would
drown in their errors. Here all of them raise the error of the first that failed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from suffice.errors import StateError, SufficeError
from suffice.train.distributed import Processes

T = TypeVar("T")

PATIENCE = 10.0  # seconds in which the process that failed can report
LOST_CONNECTION = (
    "gloo",
    "nccl",
    "connection",
    "process group",
)  # of torch's errors when a peer is gone


class LostError(StateError):
    """The connection to the other processes was lost; the process that failed has the cause."""


def together(group: Processes, work: Callable[[], T]) -> T:
    """Do the work on every process; if it fails on any, it fails on all.

    The work must not wait for other processes itself.

    """
    if group.world_size == 1:
        return work()
    try:
        done = work()
    except SufficeError as error:
        _failures(group, str(error))
        raise
    if failure := _failures(group, None):
        raise StateError(failure)
    return done


def first(group: Processes, work: Callable[[], T]) -> T | None:
    """Do the work on the first process while the others wait; they return None."""
    return together(group, work if group.is_main else lambda: None)


def shared(group: Processes, text: str, *, source: int = 0) -> str:
    """Return, on every process, the text that one of them holds."""
    if group.world_size == 1:
        return text
    encoded = list(text.encode()) if group.rank == source else []
    size = int(group.sum(torch.tensor(len(encoded))))
    padded = torch.tensor(encoded or [0] * size, dtype=torch.int64)
    return bytes(group.sum(padded).tolist()).decode()


@contextlib.contextmanager
def losing(group: Processes) -> Iterator[None]:
    """Turn torch's error into one sentence when another process is gone during a common step."""
    try:
        yield
    except RuntimeError as error:
        alone = group.world_size == 1 or isinstance(error, SufficeError)
        if alone or not any(sign in str(error).lower() for sign in LOST_CONNECTION):
            raise
        time.sleep(PATIENCE)
        raise LostError(
            f"process {group.rank} of {group.world_size} lost the connection; the process that "
            "failed reports the cause."
        ) from error


def _failures(group: Processes, reason: str | None) -> str:
    failed = torch.zeros(group.world_size, dtype=torch.int64)
    failed[group.rank] = reason is not None
    ranks = group.sum(failed).nonzero().flatten().tolist()
    if not ranks:
        return ""
    return f"process {ranks[0]} failed: {shared(group, reason or '', source=ranks[0])}"
