"""FSDP2: models sharded between processes, and their sharded checkpoints."""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError
from suffice.layers import Block
from suffice.models import checkpoint
from suffice.models.checkpoint import bare
from suffice.train.distributed import Processes, is_sharded
from suffice.utils.files import sync_folder

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(model: nn.Module, processes: Processes, device: torch.device) -> nn.Module:
    """Return a copy of a model of which each process holds a part; all must call it.

    The weights are those of process 0, each cut along its first dimension. A block's are gathered
    when it runs and freed afterwards; those outside the blocks stay for a whole pass. Gradients are
    averages over the processes, as DDP's.
    """
    from torch.distributed.device_mesh import init_device_mesh

    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(
                f"{name!r} is a single number, which cannot be cut between processes; make it a "
                "vector of one, or train with shard=False."
            )
    copied = copy.deepcopy(model)
    for tensor in (*copied.parameters(), *copied.buffers()):
        processes.broadcast(tensor.detach())
    return cut(copied, init_device_mesh(device.type, (processes.world_size,)))


def cut(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Cut a model's weights between the processes of a mesh, in place, and return it."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def release_weights(model: nn.Module) -> None:
    """Free the gathered weights of a sharded model: a pass without a backward pass keeps some."""
    for module in model.modules():
        if is_sharded(module):
            module.reshard()  # type: ignore[operator]


def is_cut(tensor: Tensor) -> bool:
    """Return whether each process holds a part of this tensor."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, or all of one that is not cut."""
    return tensor.to_local() if is_cut(tensor) else tensor  # type: ignore[operator]


def gather(tensor: Tensor) -> Tensor:
    """Return a whole tensor; all processes must call it for one that is cut."""
    return tensor.full_tensor() if is_cut(tensor) else tensor  # type: ignore[operator]


def cut_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor cut as another is, if it is whole and the other is cut."""
    if is_cut(tensor) or not is_cut(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    where = (other.device_mesh, other.placements)  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(other.device), *where, src_data_rank=None)


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors, whole or cut, into those of a whole model, one at a time."""
    with torch.no_grad():
        for name, tensor in bare(model).state_dict().items():
            tensor.copy_(gather(tensors[name]))


FACT = "shards"  # key of a checkpoint's metadata: the number of its folder


def check_torch() -> None:
    """Raise ConfigError if this torch cannot write cut tensors as safetensors."""
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageWriter"):
        raise ConfigError(
            f"torch {torch.__version__} cannot write checkpoints of sharded weights without "
            "pickle; install torch 2.9 or later, or train with shard=False."
        )


def write(path: Path, tensors: Mapping[str, Tensor], processes: Processes) -> int:
    """Write sharded tensors to a new folder next to a checkpoint; return its number.

    All processes must call it. The checkpoint is to hold the number; then `remove_others`.
    """
    import torch.distributed.checkpoint as dcp

    newest = max(_folders(path), default=0) if processes.is_main else 0
    number = int(processes.broadcast(torch.tensor(newest + 1)))
    folder = path.with_name(f"{path.name}.{FACT}.{number}")
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer)
    except (dcp.api.CheckpointException, OSError) as error:
        raise CheckpointError(
            f"cannot write {folder} ({_reason(error)}); free space or give a checkpoint in a "
            "folder that every process can write. The last checkpoint is kept."
        ) from error
    if processes.is_main:
        sync_folder(folder)
        sync_folder(folder.parent)
    return number


def remove_others(path: Path, number: int | None) -> None:
    """Remove the folders next to a checkpoint except the one it names."""
    for other, folder in _folders(path).items():
        if other != number:
            shutil.rmtree(folder, ignore_errors=True)


def read(path: Path, facts: Mapping[str, Any], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's folder, cut as expected; all processes call it."""
    if FACT not in facts:
        return {}
    import torch.distributed.checkpoint as dcp

    check_torch()
    folder = _folder(path, facts[FACT])
    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored = _headers(folder, reader)
    if wrong := _misfits(stored, expected):
        raise CheckpointError(f"{folder} does not fit: {' '.join(wrong)}")
    tensors = {name: torch.empty_like(expected[name]) for name in stored}
    single = not torch.distributed.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*single process", UserWarning)
            dcp.load(tensors, storage_reader=reader, no_dist=single)
    except (dcp.api.CheckpointException, SafetensorError, OSError) as error:
        raise _damaged(folder, error) from error
    return tensors


def _folders(path: Path) -> dict[int, Path]:
    form = re.compile(rf"{re.escape(path.name)}\.{FACT}\.([1-9]\d{{0,8}})")
    matches = [(form.fullmatch(folder.name), folder) for folder in path.parent.iterdir()]
    return {int(match[1]): folder for match, folder in matches if match}


def _folder(path: Path, number: object) -> Path:
    folders = _folders(path)
    if type(number) is int and number in folders:
        return folders[number]
    raise CheckpointError(
        f"{path} has tensors in a folder next to it, {path.name}.{FACT}.{number!s:.20}, which is "
        "not there; copy both, or start again."
    )


def _headers(folder: Path, reader: Any) -> dict[str, Any]:
    for file in sorted(folder.iterdir()):
        checkpoint.metadata(file)
    try:
        return reader.read_metadata().state_dict_metadata
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(folder, error) from error


def _misfits(stored: Mapping[str, Any], expected: Mapping[str, Tensor]) -> list[str]:
    wrong = []
    for name, header in stored.items():
        if name not in expected:
            wrong.append(f"{name!r:.80} is not in the model.")
            continue
        tensor = expected[name]
        if (header.size, header.properties.dtype) != (tensor.shape, tensor.dtype):
            wrong.append(f"{name!r:.80} is of another shape or dtype than the model's.")
        elif not _complete(header.chunks, tensor.shape):
            wrong.append(f"{name!r:.80} lacks a part; copy the files of all processes.")
    return wrong


def _complete(chunks: list[Any], size: torch.Size) -> bool:
    at = 0
    for chunk in sorted(chunks, key=lambda chunk: (chunk.offsets[0], chunk.sizes[0])):
        if (*chunk.offsets, *chunk.sizes[1:]) != (at, *[0] * (len(size) - 1), *size[1:]):
            return False
        at += chunk.sizes[0]
    return True


def _damaged(folder: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be read ({_reason(error)}); it is damaged, or not what `fit_lm` wrote."
    )


def _reason(error: BaseException) -> str:
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return f"{getattr(first, 'strerror', None) or first!s:.200}"
