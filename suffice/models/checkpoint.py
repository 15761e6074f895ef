"""Tensors and metadata in one safetensors file, written atomically.

Nothing here unpickles, and only the header is read until every name, shape and dtype fits.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suffice.errors import CheckpointError
from suffice.utils.files import replacing

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

SENTENCES = 8  # before "and n more": a hostile file must not fill the screen
MAX_SUGGESTIONS = 200  # names a missing one is compared with
HEADER_LIMIT = 4 * 2**20  # bytes; a hostile header of this size still parses in half a second


def misfits(file: Any, source: Mapping[str, str], expected: Mapping[str, Tensor]) -> list[str]:
    """Return a sentence for each tensor that is missing, unexpected or of other shape or dtype."""
    missing = [name for name in expected if name not in source]
    unexpected = sorted(name for name in source if name not in expected)
    wrong = [_absent(name, unexpected) for name in missing[:SENTENCES]]
    wrong += [f"{_quote(name)} is not expected." for name in unexpected[:SENTENCES]]
    for name, tensor in expected.items():
        if name in source:
            wrong += _differences(name, file.get_slice(source[name]), tensor)
    hidden = max(len(missing) - SENTENCES, 0) + max(len(unexpected) - SENTENCES, 0)
    if len(wrong) > 2 * SENTENCES:
        hidden += len(wrong) - 2 * SENTENCES
        wrong = wrong[: 2 * SENTENCES]
    return [*wrong, f"And {hidden} more."] if hidden else wrong


def _absent(name: str, unexpected: list[str]) -> str:
    near = difflib.get_close_matches(name, [u[:200] for u in unexpected[:MAX_SUGGESTIONS]], n=1)
    hint = f" (nearest: {_quote(near[0])})" if near else ""
    return f"{_quote(name)} is missing{hint}."


def _differences(name: str, stored: Any, tensor: Tensor) -> list[str]:
    shape, dtype = list(stored.get_shape()), stored.get_dtype()
    wrong = []
    if shape != list(tensor.shape):
        wrong.append(f"{_quote(name)} has shape {shape}, expected {list(tensor.shape)}.")
    if DTYPES.get(dtype) != tensor.dtype:
        wrong.append(f"{_quote(name)} is {dtype}, expected {tensor.dtype}.")
    return wrong


def _quote(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


def save(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and metadata to `path`, replacing what is there only when all is on the disk.

    Tensors that are the same memory are written once and come back as one.

    Args:
        path: the file, in a folder that exists.
        tensors: dense tensors on any device, by name.
        metadata: anything JSON can say.

    Raises:
        CheckpointError: if something cannot be stored or the disk refuses; `path` is as before.
    """
    path = Path(path)
    header, numbers = _pack(path, tensors, metadata)
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.writelines((header, numbers))
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path} ({error.strerror or error}); free space or give a folder that "
            "exists and can be written. No half-written file was left."
        ) from error


def load(
    path: Path | str,
    expected: Mapping[str, Tensor] | None = None,
    *,
    check: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors, on the CPU, and the metadata of a safetensors file.

    Args:
        path: path of the file.
        expected: tensors whose names, shapes and dtypes the file must have, no more and no fewer;
            None takes what is there.
        check: function called first with the metadata, to raise an error if they are wrong.

    Raises:
        CheckpointError: if the file cannot be read, is not safetensors, or does not fit; it names
            every misfit, and nothing but the header has been read.
    """
    path = Path(path)
    with _opened(path) as file:
        metadata, tied = _facts(path, file.metadata() or {})
        if check is not None:
            check(metadata)
        stored = set(file.keys())
        if not (tied.keys().isdisjoint(stored) and stored.issuperset(tied.values())):
            raise CheckpointError(f"{path} ties tensors it does not hold; export or save it again.")
        source = {name: name for name in stored} | tied
        if expected is not None and (wrong := misfits(file, source, expected)):
            raise CheckpointError(f"{path} does not fit: {' '.join(wrong)}")
        if odd := [n for n in stored if file.get_slice(n).get_dtype() not in DTYPES]:
            raise CheckpointError(f"{path} holds {odd[0]!r:.80} of a dtype not supported here.")
        # clone: get_tensor may show the file itself, which can change under us
        read = {name: file.get_tensor(name).clone() for name in sorted(stored)}
    return {name: read[origin] for name, origin in source.items()}, metadata


def metadata(path: Path | str) -> dict[str, Any]:
    """Return the metadata of a file; raise CheckpointError if it cannot be read."""
    with _opened(Path(path)) as file:
        return _facts(Path(path), file.metadata() or {})[0]


def dtype_of(path: Path | str) -> torch.dtype:
    with _opened(Path(path)) as file:
        dtypes = {DTYPES.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    floats = [dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point]
    if len(floats) != 1:
        raise CheckpointError(f"{path} holds weights of {len(floats)} dtypes; give one of a model.")
    return floats[0]


def save_model(path: Path | str, model: nn.Module, config: Mapping[str, Any]) -> None:
    """Write a model's weights and the config that rebuilds it, under the model's own names."""
    save(path, bare(model).state_dict(), {"content": "model", "config": dict(config)})


def load_model_into(path: Path | str, model: nn.Module) -> dict[str, Any]:
    """Copy every weight of a file into a model that needs exactly those; return the config.

    Raises:
        CheckpointError: as `load`, or if the file holds two values for weights the model ties; the
            model is as before.
    """
    model = bare(model)
    weights = model.state_dict()
    tensors, metadata = load(path, weights, check=partial(_refuse_other_content, path))
    for name, first in _ties(weights).items():
        if not torch.equal(tensors[name], tensors[first]):
            raise CheckpointError(
                f"{path} holds different values for {name!r} and {first!r}, which this model ties; "
                "untie them in the model or give a file where they are equal."
            )
    model.load_state_dict(tensors)
    return metadata["config"]


def bare(model: nn.Module) -> Any:
    """Return a model without the wrappers of DDP and torch.compile, which prefix its names."""
    if isinstance(model, DistributedDataParallel):
        return bare(model.module)
    return getattr(model, "_orig_mod", model)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    _refuse_by_size(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file ({error}); give one that `save` wrote, "
            "files of other formats are never opened."
        ) from error


def _refuse_other_content(path: Path | str, metadata: Mapping[str, Any]) -> None:
    if metadata.get("content") != "model" or not isinstance(metadata.get("config"), dict):
        raise CheckpointError(f"{path} is not a model written by `save_model`; give one that is.")


def _pack(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> tuple[bytes, memoryview]:
    """Return the header and the numbers of a file, the same bytes for the same content."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES.values():
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CheckpointError(
                f"cannot write {path}: {name!r} is {what}; give tensors of real numbers or bool."
            )
    tied = _ties(tensors)
    # clone: safetensors refuses tensors that share memory without being equal
    stored = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
        if name not in tied
    }
    try:
        facts = {
            "format": "pt",  # which transformers asks for
            "suffice": json.dumps(dict(metadata), allow_nan=False),
            "tied": json.dumps(tied),
        }
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"cannot write {path}: metadata is not JSON ({error}).") from error
    payload = memoryview(serialise(stored, facts))
    end = 8 + struct.unpack("<Q", payload[:8])[0]
    if end - 8 > HEADER_LIMIT:
        raise CheckpointError(
            f"cannot write {path}: names and metadata exceed {HEADER_LIMIT} bytes; store less."
        )
    header = json.loads(bytes(payload[8:end]))
    header["__metadata__"] = facts  # which safetensors writes in a random order
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # what follows is aligned
    return struct.pack("<Q", len(text)) + text, payload[end:]


def _ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the earlier name of each tensor that is the same memory as an earlier one."""
    first: dict[tuple, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        earlier = first.setdefault(place, name)
        if earlier != name and tensor.numel():
            tied[name] = earlier
    return tied


def _refuse_by_size(path: Path) -> None:
    """Check the header length in the first eight bytes before parsing an untrusted file."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {what}; give a safetensors file.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path} ({error.strerror}); check its rights."
        ) from error
    header = struct.unpack("<Q", start)[0] if len(start) == 8 else None
    if header is None or header > min(size - 8, HEADER_LIMIT):
        raise CheckpointError(
            f"{path} is not a safetensors file, or is cut short ({size} bytes, header of "
            f"{header}); give one that `save` wrote, files of other formats are never opened."
        )


def _facts(path: Path, header: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        metadata = json.loads(header.get("suffice", "{}"))
        tied = json.loads(header.get("tied", "{}"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has metadata that is not JSON; save it again.") from error
    if not isinstance(metadata, dict) or not isinstance(tied, dict):
        raise CheckpointError(f"{path} has metadata that is not a JSON object; save it again.")
    if not all(isinstance(origin, str) for origin in tied.values()):
        raise CheckpointError(f"{path} ties a tensor to something not a name; save it again.")
    return metadata, tied
