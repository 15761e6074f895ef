"""Tensors of a folder of safetensors: one file, or shards with an index that must be true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from torch import Tensor

from suffice import checkpoint
from suffice.errors import CheckpointError


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that hold NaN or infinity.

    Raises:
        CheckpointError: naming the first.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{path} holds NaN or infinity in {name!r:.80}; give weights that are numbers."
            )


WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.ckpt")
LONGEST = 1 << 26  # bytes of a file of JSON
LONGEST_NAME = 255  # bytes of the name of a file


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder by name, numbers of any precision in float32.

    Raises:
        CheckpointError: if there are none, the index names a file that is not in the folder, says
            other than the files hold, or a tensor holds NaN.
    """
    found: dict[str, Tensor] = {}
    for path, names in _files(folder):
        stored, _ = checkpoint.load(path)
        _check_index(path, names, set(stored))
        stored = {n: t.float() if t.is_floating_point() else t for n, t in stored.items()}
        check_finite(stored, path)  # as they are read: what float64 holds may be too large
        found |= stored
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        CheckpointError: if it is none.
    """
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!s:.200}); give it whole.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no JSON object; give the one that was saved.")
    return found


def _files(folder: Path) -> Iterator[tuple[Path, set[str] | None]]:
    """Give each file with the names that an index says it holds."""
    if (folder / WHOLE).is_file():
        if (folder / INDEX).is_file():
            raise CheckpointError(
                f"{folder} holds both {WHOLE} and {INDEX}; remove the one that is not the model's."
            )
        yield folder / WHOLE, None
        return
    if not (folder / INDEX).is_file():
        pickled = next((name for name in PICKLED if (folder / name).exists()), None)
        told = "" if pickled is None else f" {pickled} is a pickle, which can execute anything;"
        raise CheckpointError(f"{folder} holds no {WHOLE};{told} save the model as safetensors.")
    shards = _shards(folder / INDEX)
    for name in sorted(shards):
        yield folder / name, shards[name]


def _shards(index: Path) -> dict[str, set[str]]:
    """Return which tensors an index says that each shard holds."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
        raise CheckpointError(f"{index} has no weight_map of names; save the model again.")
    shards: dict[str, set[str]] = {}
    for tensor, name in listed.items():
        plain = PurePosixPath(name).name == PureWindowsPath(name).name == name
        legible = name.isprintable() and len(name.encode()) <= LONGEST_NAME
        if not plain or not legible or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{index} names the shard {name!r:.80}; a shard is a .safetensors file in the same "
                "folder. Do not use this folder."
            )
        shards.setdefault(name, set()).add(tensor)
    return shards


def _check_index(path: Path, listed: set[str] | None, held: set[str]) -> None:
    """Refuse a shard that holds other tensors than the index says."""
    if listed is None or listed == held:
        return
    lacks, more = sorted(listed - held), sorted(held - listed)
    told = f"it lacks {lacks[0]!r:.80}" if lacks else f"it holds {more[0]!r:.80}, too"
    raise CheckpointError(
        f"the index says other than {path} holds: {told}; save the model again, or get it anew."
    )
