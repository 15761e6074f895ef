"""Tensors cut between processes in a folder beside a checkpoint, a safetensors file for each.

torch.distributed.checkpoint writes and reads them, so any number of processes can read what
another number wrote. Its usual format describes itself by a pickle; in this one each file says in
its header which part of a tensor it holds. The checkpoint tells which folder is its own: any other
is left over, so no moment of interruption loses the last whole one.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from suffice import checkpoint
from suffice.errors import CheckpointError, ConfigError
from suffice.files import sync_folder

if TYPE_CHECKING:
    from suffice.train.distributed import Processes

FACT = "shards"  # under which a checkpoint has the number of its folder


def check_torch() -> None:
    """Refuse a torch that cannot write cut tensors as safetensors.

    Raises:
        ConfigError: if it cannot.
    """
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageWriter"):
        raise ConfigError(
            f"torch {torch.__version__} cannot write checkpoints of sharded weights without "
            "pickle; install torch 2.9 or later, or train with shard=False."
        )


def write(path: Path, tensors: Mapping[str, Tensor], processes: Processes) -> int:
    """Write cut tensors to a new folder beside a checkpoint; return its number.

    All processes must call it. The checkpoint is to keep the number; then `remove_others`.

    Raises:
        CheckpointError: on every process, if any of them cannot write.
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
    """Remove the folders beside a checkpoint but its own."""
    for other, folder in _folders(path).items():
        if other != number:
            shutil.rmtree(folder, ignore_errors=True)


def read(path: Path, facts: Mapping[str, Any], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint has in its folder, cut as the expected ones are.

    Args:
        path: the checkpoint.
        facts: its metadata; where they tell of no folder, there are no such tensors.
        expected: tensors of which it may hold some; all processes must call it if any is cut.

    Raises:
        CheckpointError: if the folder is absent, cannot be read or does not fit.
    """
    if FACT not in facts:
        return {}
    import torch.distributed.checkpoint as dcp

    check_torch()
    folder = _own(path, facts[FACT])
    reader = dcp.HuggingFaceStorageReader(str(folder))
    found = _described(folder, reader)
    if wrong := _misfits(found, expected):
        raise CheckpointError(f"{folder} does not fit: {' '.join(wrong)}")
    tensors = {name: torch.empty_like(expected[name]) for name in found}
    alone = not torch.distributed.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*single process", UserWarning)
            dcp.load(tensors, storage_reader=reader, no_dist=alone)
    except (dcp.api.CheckpointException, SafetensorError, OSError) as error:
        raise _damaged(folder, _reason(error)) from error
    return tensors


def _folders(path: Path) -> dict[int, Path]:
    """Return the folders beside a checkpoint by their numbers."""
    named = re.compile(rf"{re.escape(path.name)}\.{FACT}\.([1-9]\d{{0,8}})")
    found = [(named.fullmatch(beside.name), beside) for beside in path.parent.iterdir()]
    return {int(match[1]): beside for match, beside in found if match}


def _own(path: Path, number: object) -> Path:
    """Return the folder of a checkpoint."""
    folders = _folders(path)
    if type(number) is int and number in folders:
        return folders[number]
    raise CheckpointError(
        f"{path} has tensors in a folder beside it, {path.name}.{FACT}.{number!s:.20}, which is "
        "not there; copy both, or start anew."
    )


def _described(folder: Path, reader: Any) -> dict[str, Any]:
    """Return what the headers in a folder say of each tensor."""
    for file in sorted(folder.iterdir()):
        checkpoint.metadata(file)
    try:
        return reader.read_metadata().state_dict_metadata
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(folder, _reason(error)) from error


def _misfits(found: Mapping[str, Any], expected: Mapping[str, Tensor]) -> list[str]:
    """Return a sentence for each tensor that is not the expected one, or not there in full."""
    wrong = []
    for name, told in found.items():
        if name not in expected:
            wrong.append(f"{name!r:.80} is not in the model.")
            continue
        due = expected[name]
        if (told.size, told.properties.dtype) != (due.shape, due.dtype):
            wrong.append(f"{name!r:.80} is of another shape or dtype than the model's.")
        elif not _complete(told.chunks, due.shape):
            wrong.append(f"{name!r:.80} lacks a part; copy the files of all processes.")
    return wrong


def _complete(chunks: list[Any], size: torch.Size) -> bool:
    """Return whether parts cut along the first dimension follow each other without a gap."""
    at = 0
    for chunk in sorted(chunks, key=lambda one: (one.offsets[0], one.sizes[0])):
        if (*chunk.offsets, *chunk.sizes[1:]) != (at, *[0] * (len(size) - 1), *size[1:]):
            return False
        at += chunk.sizes[0]
    return True


def _damaged(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be read ({why}); it is damaged, or not what `fit_lm` wrote."
    )


def _reason(error: BaseException) -> str:
    """Return why torch.distributed.checkpoint failed, without the traces it gathers."""
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return f"{getattr(first, 'strerror', None) or first!s:.200}"
