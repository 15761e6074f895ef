"""A graph in ONNX: standard operators, weights inside, and nothing that tells where it was made."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from suffice.errors import CheckpointError, ConfigError
from suffice.export.graph import Decoder, Port, Whole, arranged, quiet, traced

FILE = "model.onnx"
OPSET = 20
LARGEST = (1 << 31) - (1 << 20)  # bytes of one file: what its format can count, less the graph


def needed() -> None:
    """Refuse to begin without the packages that write and read such files.

    Raises:
        ConfigError: naming the one that is absent.
    """
    for name in ("onnxscript", "onnxruntime"):
        _package(name)


def write(module: Decoder | Whole, path: Path) -> None:
    """Write a module as an ONNX file.

    Raises:
        ConfigError: if a package is not installed, or the module cannot be traced or translated.
        CheckpointError: if its weights are more than one file can hold.
    """
    ir = _package("onnx_ir")
    size = sum(one.numel() * one.element_size() for one in module.parameters())
    if size > LARGEST:
        raise CheckpointError(
            f"the weights are {size:,} bytes, and one ONNX file holds at most {LARGEST:,}; export "
            "a smaller model, or to hf."
        )
    inputs, outputs = module.inputs(), module.outputs()
    graph = traced(module)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[port.name for port in inputs],
                output_names=[port.name for port in outputs],
            )
    except torch.onnx.errors.OnnxExporterError as error:
        told = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(
            f"ONNX has no operators for this model ({told:.300}); run it with `suffice generate`."
        ) from error
    model = program.model
    _named(model.graph.inputs, inputs, ir)
    _named(model.graph.outputs, outputs, ir)
    _bared(model)
    ir.save(model, path)


def _package(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"exporting to onnx needs the package {name}; install it with "
            "pip install 'suffice[export]'."
        ) from error


def _named(values: Sequence[Any], ports: Sequence[Port], ir: Any) -> None:
    """Give free sizes the names that the manifest has for them."""
    for value, port in zip(values, ports, strict=True):
        value.shape = ir.Shape(port.shape)


def _bared(model: Any) -> None:
    """Take out what tells of files, lines and calls on the machine that made the graph."""
    model.doc_string, model.producer_name, model.producer_version = None, "suffice", None
    model.metadata_props.clear()
    for graph in (model.graph, *model.functions.values()):
        graph.doc_string = None
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.doc_string = None
            node.metadata_props.clear()
            for value in node.outputs:
                value.doc_string = None
                value.metadata_props.clear()
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.doc_string = None
            value.metadata_props.clear()


def call_of(path: Path) -> Callable[..., Sequence[np.ndarray]]:
    """Return what calls the graph of a file in ONNX Runtime."""
    runtime = _package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


ARCHIVE_FILE = "model.pt2"
TOLD = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")
PLAIN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|archive_(format|version)|byteorder|"
    r"\.data/(serialization_id|version)"
)
EMPTY = "data/sample_inputs/model.pt"


def write_archive(module: Decoder | Whole, path: Path) -> None:
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


def call_of_archive(path: Path, module: Decoder | Whole) -> Callable[..., Sequence[np.ndarray]]:
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
