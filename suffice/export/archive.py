"""A graph as an archive of torch.export: JSON and raw numbers, no pickle, nothing compiled.

torch keeps the inputs that a graph was traced with, pickled, and each node's lines of source; both
are left out. A package of AOTInductor would be faster and is not written: it is a shared library,
made for one machine, which is executed by whoever opens it.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from suffice.errors import CheckpointError
from suffice.export.decoder import Decoder, Port
from suffice.export.traced import arranged, quiet, traced
from suffice.export.whole import Whole

FILE = "model.pt2"
TOLD = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")
PLAIN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|archive_(format|version)|byteorder|"
    r"\.data/(serialization_id|version)"
)
EMPTY = "data/sample_inputs/model.pt"


def write(module: Decoder | Whole, path: Path) -> None:
    """Write a module as an archive.

    Raises:
        ConfigError: if torch cannot trace it for every length.
        CheckpointError: if torch put anything into the archive that is neither JSON nor numbers.
    """
    graph = traced(module)
    graph.example_inputs = None
    for part in graph.graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            for name in TOLD:
                node.meta.pop(name, None)
    with quiet():
        torch.export.save(graph, path)
    check(path)


def check(path: Path) -> None:
    """Refuse an archive that holds anything but JSON and raw numbers.

    Raises:
        CheckpointError: naming what it holds.
    """
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.partition("/")[2]
            if PLAIN.fullmatch(name) or (name == EMPTY and not info.file_size):
                continue
            if not name.endswith(".json") or pickled(json.loads(archive.read(info))):
                raise CheckpointError(
                    f"this torch writes {name!r:.80} into an archive, which is neither JSON nor "
                    "raw numbers; nothing was kept. Export to onnx."
                )


def pickled(told: object) -> bool:
    """Return whether a description of weights says that some are pickled.

    Example:
        >>> pickled({"config": {"w": {"use_pickle": True}}}), pickled({"config": {}})
        (True, False)
    """
    if isinstance(told, dict):
        return bool(told.get("use_pickle")) or any(map(pickled, told.values()))
    return isinstance(told, list) and any(map(pickled, told))


def call_of(path: Path, module: Decoder | Whole) -> Callable[..., Sequence[np.ndarray]]:
    """Return what calls the graph of an archive written here."""
    with quiet():
        graph = torch.export.load(path).module()
    ports: list[Port] = module.inputs()

    def call(feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        given = [torch.from_numpy(np.ascontiguousarray(feeds[port.name])) for port in ports]
        with torch.no_grad():
            found = graph(*arranged(module, given))
        return [one.numpy() for one in (found if isinstance(found, tuple) else (found,))]

    return call
