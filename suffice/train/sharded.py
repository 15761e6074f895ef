"""Models whose weights are cut between processes (FSDP2), and the way back to whole ones."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from suffice.checkpoint import bare
from suffice.errors import ConfigError
from suffice.layers import Block

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from suffice.train.distributed import Processes


def shard(model: nn.Module, processes: Processes, device: torch.device) -> nn.Module:
    """Return a copy of a model of which each process holds a part; all must call it.

    The weights are those of process 0. Each is cut along its first dimension; a block's are
    gathered when it runs and let go afterwards, those outside the blocks stay for a whole pass.
    Gradients are averages over the processes, as DDP's. The model itself is left as it is.

    Args:
        model: whole, anywhere.
        processes: that hold the parts.
        device: of the parts.

    Raises:
        ConfigError: if a parameter has no dimension to be cut along.
    """
    from torch.distributed.device_mesh import init_device_mesh

    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(
                f"{name!r} is a single number, which cannot be cut between processes; make it a "
                "vector of one, or train with shard=False."
            )
    parted = copy.deepcopy(model)
    for tensor in (*parted.parameters(), *parted.buffers()):
        processes.broadcast(tensor.detach())
    return cut(parted, init_device_mesh(device.type, (processes.world_size,)))


def cut(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Cut a model's weights between the processes of a mesh, in place, and return it."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    """Return whether `shard` made this model."""
    return hasattr(model, "set_requires_gradient_sync")  # of FSDP2 alone; slow to import


@contextlib.contextmanager
def apart(model: Any) -> Iterator[None]:
    """Let each process add up gradients of a sharded model for itself, for the block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def let_go(model: nn.Module) -> None:
    """Let a sharded model's gathered weights go: a pass without a way back keeps some."""
    for module in model.modules():
        if is_sharded(module):
            module.reshard()  # type: ignore[operator]


def is_cut(tensor: Tensor) -> bool:
    """Return whether each process holds a part of this tensor."""
    return hasattr(tensor, "full_tensor")


def own(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, or all of one that is not cut."""
    return tensor.to_local() if is_cut(tensor) else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor put together; all processes must call it for one that is cut."""
    return tensor.full_tensor() if is_cut(tensor) else tensor  # type: ignore[operator]


def cut_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor cut as another is, if it is and the first is whole."""
    if is_cut(tensor) or not is_cut(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    where = (other.device_mesh, other.placements)  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(other.device), *where, src_data_rank=None)


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors, whole or cut, into those of a whole model, one at a time."""
    with torch.no_grad():
        for name, tensor in bare(model).state_dict().items():
            tensor.copy_(whole(tensors[name]))
