"""Processes that are not there: a group of hundreds of them, seen from the first."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch.distributed as dist

from suffice.errors import StateError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextlib.contextmanager
def imagined(ranks: int) -> Iterator[DeviceMesh]:
    """Give a mesh of processes whose messages go nowhere, for the time of the block.

    Args:
        ranks: how many.

    Raises:
        StateError: if this process has real ones already.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise StateError(
            f"this is one of {dist.get_world_size()} processes; plan from a process of its own, "
            "not one that torchrun started."
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        gc.collect()  # parts of models hold the group
        dist.destroy_process_group()
