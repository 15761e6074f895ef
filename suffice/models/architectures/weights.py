"""Loads the safetensors of a folder: one file, or shards listed by an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from torch import Tensor

from suffice.errors import CheckpointError
from suffice.models import checkpoint
from suffice.utils.files import check_links, parse_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.ckpt")
MAX_JSON = 1 << 26  # bytes of a file
MAX_NAME = 255  # bytes of the name of a file


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder by name, floating-point ones in float32."""
    check_links(folder)
    if (folder / WEIGHTS).is_file():
        if (folder / INDEX).is_file():
            raise CheckpointError(
                f"{folder} holds both {WEIGHTS} and {INDEX}; remove the one that is not the "
                "model's."
            )
        return _load(folder / WEIGHTS, None)
    if not (folder / INDEX).is_file():
        pickle = next((name for name in PICKLES if (folder / name).exists()), None)
        reason = "" if pickle is None else f" {pickle} is a pickle, which can execute anything;"
        raise CheckpointError(
            f"{folder} holds no {WEIGHTS};{reason} save the model as safetensors."
        )
    tensors: dict[str, Tensor] = {}
    for shard, names in sorted(read_index(folder / INDEX).items()):
        tensors |= _load(folder / shard, names)
    return tensors


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Check that weights hold neither NaN nor infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{path} holds NaN or infinity in {name!r:.80}; give finite weights."
            )


def read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = parse_json(file.read(MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!s:.200}); give it whole.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object; give the one that was saved.")
    return content


def _load(path: Path, listed: set[str] | None) -> dict[str, Tensor]:
    tensors, _ = checkpoint.load(path)
    if listed is not None and listed != tensors.keys():
        missing, extra = sorted(listed - tensors.keys()), sorted(tensors.keys() - listed)
        problem = f"it lacks {missing[0]!r:.80}" if missing else f"it also holds {extra[0]!r:.80}"
        raise CheckpointError(
            f"the index does not match {path}: {problem}; save or download the model again."
        )
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    check_finite(tensors, path)  # in float32, where a large float64 overflows
    return tensors


def read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the tensors of each shard, which is a file in the same folder."""
    entries = read_json(path).get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise CheckpointError(f"{path} has no weight_map of names; save the model again.")
    shards: dict[str, set[str]] = {}
    for tensor, name in entries.items():
        plain = PurePosixPath(name).name == PureWindowsPath(name).name == name
        legible = name.isprintable() and len(name.encode()) <= MAX_NAME
        if not plain or not legible or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} names the shard {name!r:.80}; a shard is a .safetensors file in the same "
                "folder. Do not use this folder."
            )
        shards.setdefault(name, set()).add(tensor)
    return shards
