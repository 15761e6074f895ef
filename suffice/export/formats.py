"""Files of graphs: ONNX, and torch.export's archive, without traces of the machine."""

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
from suffice.export.graph import ClassifierGraph, DecoderGraph, Port, call_arguments, quiet, trace

ONNX_FILE, ARCHIVE_FILE = "model.onnx", "model.pt2"
OPSET = 20
MAX_WEIGHTS = (1 << 31) - (1 << 20)  # bytes in one ONNX file: protobuf's limit, less the graph
TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")
PLAIN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|archive_(format|version)|byteorder|"
    r"\.data/(serialization_id|version)"
)
EMPTY = "data/sample_inputs/model.pt"


def check_packages() -> None:
    """Check that the packages that write and read ONNX files are installed."""
    for name in ("onnxscript", "onnxruntime"):
        _package(name)


def write_onnx(module: DecoderGraph | ClassifierGraph, path: Path) -> None:
    """Write a module as an ONNX file."""
    ir = _package("onnx_ir")
    size = sum(one.numel() * one.element_size() for one in module.parameters())
    if size > MAX_WEIGHTS:
        raise CheckpointError(
            f"the weights are {size:,} bytes, and one ONNX file holds at most {MAX_WEIGHTS:,}; "
            "export a smaller model, or to hf."
        )
    inputs, outputs = module.inputs(), module.outputs()
    graph = trace(module)
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
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(
            f"ONNX has no operators for this model ({reason:.300}); run it with `suffice generate`."
        ) from error
    model = program.model
    _name_sizes(model.graph.inputs, inputs, ir)
    _name_sizes(model.graph.outputs, outputs, ir)
    _strip_metadata(model)
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


def _name_sizes(values: Sequence[Any], ports: Sequence[Port], ir: Any) -> None:
    """Name dynamic sizes as the manifest does."""
    for value, port in zip(values, ports, strict=True):
        value.shape = ir.Shape(port.shape)


def _strip_metadata(model: Any) -> None:
    """Remove the files, lines and calls of the machine that made the graph."""
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


def call_onnx(path: Path) -> Callable[..., Sequence[np.ndarray]]:
    """Return a function that runs the graph of a file in ONNX Runtime."""
    runtime = _package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def write_archive(module: DecoderGraph | ClassifierGraph, path: Path) -> None:
    """Write a module as an archive."""
    graph = trace(module)
    graph.example_inputs = None
    for part in graph.graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            for name in TRACES:
                node.meta.pop(name, None)
    with quiet():
        torch.export.save(graph, path)
    check_archive(path)


def check_archive(path: Path) -> None:
    """Check that an archive holds nothing but JSON and raw numbers."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.partition("/")[2]
            if PLAIN.fullmatch(name) or (name == EMPTY and not info.file_size):
                continue
            if not name.endswith(".json") or has_pickle(json.loads(archive.read(info))):
                raise CheckpointError(
                    f"this torch writes {name!r:.80} into an archive, which is neither JSON nor "
                    "raw numbers; nothing was kept. Export to onnx."
                )


def has_pickle(entry: object) -> bool:
    """Return whether a description of weights says that some are pickled.

    Example:
        >>> has_pickle({"config": {"w": {"use_pickle": True}}}), has_pickle({"config": {}})
        (True, False)
    """
    if isinstance(entry, dict):
        return bool(entry.get("use_pickle")) or any(map(has_pickle, entry.values()))
    return isinstance(entry, list) and any(map(has_pickle, entry))


def call_archive(
    path: Path, module: DecoderGraph | ClassifierGraph
) -> Callable[..., Sequence[np.ndarray]]:
    """Return a function that runs the graph of an archive written here."""
    with quiet():
        graph = torch.export.load(path).module()
    ports: list[Port] = module.inputs()

    def call(feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        arrays = [torch.from_numpy(np.ascontiguousarray(feeds[port.name])) for port in ports]
        with torch.no_grad():
            outputs = graph(*call_arguments(module, arrays))
        return [one.numpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return call
