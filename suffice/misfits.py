"""Whether the tensors a file announces are the ones expected, told in sentences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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

TOLD = 8  # sentences before "and n more": a hostile file must not fill the screen
COMPARED = 200  # names a missing one is compared with


def misfits(file: Any, source: Mapping[str, str], expected: Mapping[str, Tensor]) -> list[str]:
    """Return a sentence for each tensor that is missing, unexpected or of another shape or dtype.

    Args:
        file: an open safetensors file; only its header is read.
        source: the names the file offers, each with the name it is stored under.
        expected: tensors as they should be; their values do not matter.
    """
    missing = [name for name in expected if name not in source]
    unexpected = sorted(name for name in source if name not in expected)
    wrong = [_absent(name, unexpected) for name in missing[:TOLD]]
    wrong += [f"{_quote(name)} is not expected." for name in unexpected[:TOLD]]
    for name, tensor in expected.items():
        if name in source:
            wrong += _differences(name, file.get_slice(source[name]), tensor)
    hidden = max(len(missing) - TOLD, 0) + max(len(unexpected) - TOLD, 0)
    if len(wrong) > 2 * TOLD:
        hidden += len(wrong) - 2 * TOLD
        wrong = wrong[: 2 * TOLD]
    return [*wrong, f"And {hidden} more."] if hidden else wrong


def _absent(name: str, unexpected: list[str]) -> str:
    near = difflib.get_close_matches(name, [u[:200] for u in unexpected[:COMPARED]], n=1)
    hint = f" (nearest: {_quote(near[0])})" if near else ""
    return f"{_quote(name)} is missing{hint}."


def _differences(name: str, found: Any, tensor: Tensor) -> list[str]:
    shape, dtype = list(found.get_shape()), found.get_dtype()
    wrong = []
    if shape != list(tensor.shape):
        wrong.append(f"{_quote(name)} has shape {shape}, expected {list(tensor.shape)}.")
    if DTYPES.get(dtype) != tensor.dtype:
        wrong.append(f"{_quote(name)} is {dtype}, expected {tensor.dtype}.")
    return wrong


def _quote(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
