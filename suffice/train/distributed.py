"""Data-parallel processes: rank and device, row sharding, all-reduce of sums.

One process has no process group; several are started by torchrun.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suffice.errors import ConfigError, StateError, SufficeError, unknown

# torch 2.13 renamed the argument and warns about the old name
_NEW = "forward_sync_buffers"
_SYNC_BUFFERS = (
    _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"
)


def resolve_device(name: str) -> torch.device:
    """Return the device that "cpu", "cuda" or "cuda:0" names.

    Under torchrun "cuda" is this process's own GPU.
    """
    if name == "cpu":
        return torch.device("cpu")
    if not re.fullmatch(r"cuda(:\d{1,4})?", name):
        if name == "gpu":
            raise ConfigError("unknown device 'gpu'; did you mean 'cuda'? Legal: cpu, cuda.")
        raise unknown("device", name, ("cpu", "cuda"))
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={name!r}, but torch finds no CUDA device here; give device='cpu', or install "
            "a CUDA build of torch on a machine with a GPU."
        )
    _, _, index = name.partition(":")
    number = int(index or os.environ.get("LOCAL_RANK", 0))
    if number >= torch.cuda.device_count():
        raise ConfigError(
            f"device 'cuda:{number}' does not exist, this machine has {torch.cuda.device_count()} "
            "CUDA devices; give a smaller index or start fewer processes."
        )
    return torch.device("cuda", number)


@dataclass(frozen=True)
class Processes:
    """The processes that share each batch, seen from the one numbered `rank`, from 0."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, count: int) -> tuple[int, int]:
        """Return [start, stop) of this process's contiguous share of `count` rows.

        Example:
            >>> [Processes(rank, 3).share(4) for rank in range(3)]
            [(0, 1), (1, 2), (2, 4)]
        """
        start = count * self.rank // self.world_size
        return start, count * (self.rank + 1) // self.world_size

    def barrier(self) -> None:
        """Wait for every process."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, tensor: Tensor) -> Tensor:
        """Add `tensor` over the processes, in place, and return it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite `tensor` with that of process 0 and return it."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def any(self, fact: bool) -> bool:
        """Return, on every process, whether the fact is true on at least one."""
        if self.world_size == 1:
            return fact
        return self.sum(torch.tensor(int(fact))).item() > 0

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model to call in training: DDP over several processes, else the model itself.

        Buffers are not exchanged: they must be constants, as in every model of this library.
        """
        if self.world_size == 1 or is_sharded(model):
            return model
        devices = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, **{_SYNC_BUFFERS: False})

    def no_sync(self, replica: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return the context in which gradients are accumulated without being exchanged."""
        if isinstance(replica, DistributedDataParallel):
            return replica.no_sync()
        if is_sharded(replica):
            return no_sync(replica)
        return contextlib.nullcontext()


def is_sharded(model: nn.Module) -> bool:
    """Return whether `shard` made this model."""
    return hasattr(model, "set_requires_gradient_sync")  # of FSDP2 alone; slow to import


@contextlib.contextmanager
def no_sync(model: Any) -> Iterator[None]:
    """Accumulate gradients of a sharded model without exchanging them, for the block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def current() -> Processes:
    """Return the processes this code runs in."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    if _started_by_torchrun():
        raise StateError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes that do not know each other; "
            "put the work inside `with suffice.train.processes(device):`."
        )
    return Processes()


@contextlib.contextmanager
def processes(device: str = "cpu") -> Iterator[Processes]:
    """Join the processes torchrun started, for the time of the block.

    Outside torchrun, or when it started one process, there is no process group. Small tensors on
    the CPU always travel by gloo, those of a GPU by nccl.
    """
    place = resolve_device(device)
    if not _started_by_torchrun() or dist.is_initialized():
        yield current()
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    try:
        yield current()
    finally:
        gc.collect()  # replicas hold the group; one that outlives it aborts the process at its end
        dist.destroy_process_group()


def _started_by_torchrun() -> bool:
    return dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", 1)) > 1


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
    """Do the work, which must not wait for others, on every process; one failure fails all."""
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
