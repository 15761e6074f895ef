"""Steps that several processes take together, and end together when one of them fails.

Under torchrun a process that leaves alone would keep the others waiting, and its reason would
drown in theirs. Here they all learn who failed first and why.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from suffice.errors import StateError, SufficeError
from suffice.train import Processes

T = TypeVar("T")

PATIENCE = 10.0  # seconds in which the process that failed speaks
SIGNS = ("gloo", "nccl", "connection", "process group")  # of torch's errors when a peer is gone


class LostError(StateError):
    """The other processes are gone; one that failed knows more."""


def together(group: Processes, work: Callable[[], T]) -> T:
    """Do the work on every process; if it fails on any, it fails on all.

    The work must not wait for other processes itself.

    Args:
        group: the processes.
        work: what to do; errors other than SufficeError end this process alone.

    Raises:
        SufficeError: this process's own error, or, where there is none, that of the first
            process which failed, in its words.
    """
    if group.world_size == 1:
        return work()
    try:
        done = work()
    except SufficeError as error:
        _failures(group, str(error))
        raise
    if told := _failures(group, None):
        raise StateError(told)
    return done


def first(group: Processes, work: Callable[[], T]) -> T | None:
    """Do the work on the first process while the others wait; they return None.

    Raises:
        SufficeError: the work's error, on every process.
    """
    return together(group, work if group.is_main else lambda: None)


def shared(group: Processes, text: str, *, source: int = 0) -> str:
    """Return, on every process, the text that one of them holds."""
    if group.world_size == 1:
        return text
    own = list(text.encode()) if group.rank == source else []
    size = int(group.sum(torch.tensor(len(own))))
    data = torch.tensor(own or [0] * size, dtype=torch.int64)
    return bytes(group.sum(data).tolist()).decode()


@contextlib.contextmanager
def losing(group: Processes) -> Iterator[None]:
    """Tell in one sentence when another process has gone in the middle of a common step.

    Raises:
        LostError: when torch finds a connection closed; some seconds later, so that torchrun, which
            ends all when the first one leaves, leaves the one that failed the time to say why.
    """
    try:
        yield
    except RuntimeError as error:
        alone = group.world_size == 1 or isinstance(error, SufficeError)
        if alone or not any(sign in str(error).lower() for sign in SIGNS):
            raise
        time.sleep(PATIENCE)
        raise LostError(
            f"process {group.rank} of {group.world_size} lost the others; the one that failed "
            "tells why, if it still could."
        ) from error


def _failures(group: Processes, own: str | None) -> str:
    """Return what the first process that failed has to tell; empty when none did."""
    failed = torch.zeros(group.world_size, dtype=torch.int64)
    failed[group.rank] = own is not None
    ranks = group.sum(failed).nonzero().flatten().tolist()
    if not ranks:
        return ""
    return f"process {ranks[0]} failed: {shared(group, own or '', source=ranks[0])}"
