"""ONNX Runtime: the model as a graph, in 32 bits or rounded by the runtime's own tools."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suffice.measure.edge.peers import package
from suffice.measure.edge.peers.greedy import Greedy
from suffice.measure.edge.peers.onnx_graph import graph_of
from suffice.measure.edge.run import Side
from suffice.models import LM

BITS = (32, 8, 4)
BLOCK = 32  # weights with one scale in 4 bits
IN_8_BITS = 4  # the runtime's "accuracy level" of products whose activations have 8 bits


def make(lm: LM, *, bits: int, room: int, folder: Path) -> Side:
    """Write the model as a graph and return the side that runs it.

    Raises:
        ConfigError: if onnxruntime or onnx is not installed.
    """
    runtime = package("onnxruntime", "onnxruntime")
    onnx = package("onnx", "onnx")
    path = folder / f"{bits}.onnx"
    graph = graph_of(lm, room)
    if bits == 4:  # noqa: PLR2004
        graph = _in_4_bits(graph)
    if bits == 8:  # noqa: PLR2004
        _in_8_bits(graph, onnx, path)
    else:
        onnx.save(graph, path)
    return OnnxRuntime(runtime, path, lm, room)


def _in_8_bits(graph: Any, onnx: Any, path: Path) -> None:
    """Write the graph with weights in 8 bits and activations rounded as they come."""
    tools = package("onnxruntime", "onnxruntime.quantization")
    before = path.with_suffix(".whole.onnx")
    onnx.save(graph, before)
    given = {"op_types_to_quantize": ["MatMul"], "weight_type": tools.QuantType.QInt8}
    given["extra_options"] = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises to prepare the graph, which has nothing to prepare
    try:
        tools.quantize_dynamic(before, path, per_channel=True, **given)
    finally:
        root.setLevel(level)
    before.unlink()


def _in_4_bits(graph: Any) -> Any:
    """Return the graph with weights in blocks of 4 bits."""
    tools = package("onnxruntime", "onnxruntime.quantization.matmul_nbits_quantizer")
    given = {"block_size": BLOCK, "is_symmetric": True, "accuracy_level": IN_8_BITS}
    quantizer = tools.MatMulNBitsQuantizer(graph, **given)
    quantizer.process()
    return quantizer.model.model


class OnnxRuntime(Greedy):
    """A graph with a cache in place, bound once, with as many threads as torch has.

    Args:
        runtime: the package.
        path: of the graph.
        lm: the model it was made of.
        room: positions of the cache.
    """

    name = "onnxruntime"

    def __init__(self, runtime: Any, path: Path, lm: LM, room: int) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        chosen = ["CPUExecutionProvider"]
        self.session = runtime.InferenceSession(path, options, providers=chosen)
        self.binding = self.session.io_binding()
        spec, self.length = lm.specs[0], 0
        self.found = np.zeros((1, 1, lm.config.vocabulary_size), dtype=np.float32)
        self.bound = runtime.OrtValue.ortvalue_from_numpy(self.found)
        self.binding.bind_ortvalue_output("logits", self.bound)
        self.kept = []
        for number in range(lm.config.depth):
            for what in ("keys", "values"):
                empty = np.zeros((1, spec.kv_heads, room, spec.head_width), dtype=np.float32)
                value = runtime.OrtValue.ortvalue_from_numpy(empty)
                self.binding.bind_ortvalue_input(f"{number}.{what}.past", value)
                self.binding.bind_ortvalue_output(f"{number}.{what}", value)
                self.kept.append((empty, value))

    def begin(self) -> None:
        """Forget what was read."""
        self.length = 0

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [T] and return the logits [V] behind them."""
        self.length += len(ids)
        self.binding.bind_cpu_input("ids", np.ascontiguousarray(ids[None], dtype=np.int64))
        self.binding.bind_cpu_input("before", np.array([self.length - 1], dtype=np.int32))
        self.binding.bind_cpu_input("total", np.array(self.length, dtype=np.int32))
        self.session.run_with_iobinding(self.binding)
        return self.bound.numpy()[0, 0]
