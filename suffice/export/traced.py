"""A module of flat tensors as a graph of torch.export, free in batch and lengths."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.export.decoder import TYPES, Decoder, Port
from suffice.export.whole import Whole

SIZES = {"batch": 2, "chunk": 3, "past": 4, "length": 3}  # any from 2; a graph may fix 0 and 1
DTYPES = {name: dtype for dtype, name in TYPES.items()}


def traced(module: Decoder | Whole) -> torch.export.ExportedProgram:
    """Return the graph of a module.

    Raises:
        ConfigError: if torch cannot trace what it computes for any length.
    """
    ports = module.inputs()
    samples = [_sample(port) for port in ports]
    free = [_free(port) for port in ports]
    given, dims = arranged(module, samples), arranged(module, free)
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(module, given, dynamic_shapes=dims, strict=False)
    except Exception as error:  # noqa: BLE001 - torch has no class of its own for these
        told = " ".join(str(error).split())
        raise ConfigError(
            f"torch cannot trace this model for every length ({told:.300}); run it with "
            "`suffice generate`, or export a layer composition without what is named there."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's exporters from telling of themselves."""
    root = logging.getLogger("torch")
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _sample(port: Port) -> Tensor:
    sizes = [SIZES[size] if isinstance(size, str) else size for size in port.shape]
    if port.dtype == "bool":
        return torch.ones(sizes, dtype=torch.bool)
    if port.dtype == "int64":
        return torch.arange(sizes[1]).expand(sizes).clone() % 2
    return torch.zeros(sizes)


def _free(port: Port) -> dict[int, object]:
    free = [axis for axis, size in enumerate(port.shape) if isinstance(size, str)]
    return dict.fromkeys(free, torch.export.Dim.DYNAMIC)


def arranged(module: nn.Module, parts: Sequence) -> tuple:
    """Return what goes into a call: a Decoder takes its past as one list."""
    if isinstance(module, Decoder):
        return (*parts[:3], list(parts[3:]))
    return tuple(parts)
