"""ONNX Runtime on a Llama-like model as a graph of its fused nodes, with a KV cache in place.

Attention is one node with the cache and the rotation of queries and keys inside, fed by one product
for queries, keys and values; norms take the sum before them. The logits are those after the last
token. Weights of fewer bits are rounded by the runtime's own tools.

Letters: T tokens, S room of the cache, G key/value heads, D head width.
"""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.decoders import Decoder, GreedyPeer, head, layers
from benchmarks.peers.installed import package
from suffice.models import LM

BITS = (32, 8, 4)
BLOCK = 32  # weights with one scale in 4 bits
IN_8_BITS = 4  # the runtime's "accuracy level" of products whose activations have 8 bits


def make(lm: LM, *, bits: int, room: int, folder: Path, rows: int) -> Decoder:
    """Write the model as a graph and return the peer that runs it.

    Raises:
        Absent: if onnxruntime or onnx is not installed.
    """
    runtime = package("onnxruntime", "onnxruntime")
    onnx = package("onnx", "onnx")
    path = folder / f"{bits}.onnx"
    graph = graph_of(lm, room)
    if bits == 4:
        graph = _in_4_bits(graph)
    if bits == 8:
        _in_8_bits(graph, onnx, path)
    else:
        save(onnx, graph, path)
    return OnnxRuntime(runtime, path, lm, room, rows)


def save(onnx: Any, graph: Any, path: Path) -> None:
    """Write a graph, its weights beside it: a file of this format cannot have 2 GiB."""
    onnx.save(graph, path, save_as_external_data=True, location=f"{path.stem}.data")


def _in_8_bits(graph: Any, onnx: Any, path: Path) -> None:
    """Write the graph with weights in 8 bits and activations rounded as they come."""
    tools = package("onnxruntime", "onnxruntime.quantization")
    before = path.with_suffix(".whole.onnx")
    save(onnx, graph, before)
    options = {
        "op_types_to_quantize": ["MatMul"],
        "weight_type": tools.QuantType.QInt8,
        "per_channel": True,
        "reduce_range": not has_vnni(),
        "use_external_data_format": True,
        "extra_options": {"DefaultTensorType": onnx.TensorProto.FLOAT},
    }
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises to prepare the graph, which has nothing to prepare
    try:
        tools.quantize_dynamic(before, path, **options)
    finally:
        root.setLevel(level)
    before.unlink()


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether 8-bit products are summed in 32 bits here, as far as the system says.

    x86 processors without VNNI sum pairs of them in 16 bits, which saturates; for those the
    runtime's documentation asks for weights of 7 bits (`reduce_range`).
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return cpuinfo.exists() and "vnni" in cpuinfo.read_text()


def _in_4_bits(graph: Any) -> Any:
    """Return the graph with weights in blocks of 4 bits."""
    tools = package("onnxruntime", "onnxruntime.quantization.matmul_nbits_quantizer")
    options = {"block_size": BLOCK, "is_symmetric": True, "accuracy_level": IN_8_BITS}
    quantizer = tools.MatMulNBitsQuantizer(graph, **options)
    quantizer.process()
    return quantizer.model.model


class OnnxRuntime(GreedyPeer):
    """A graph with a cache in place, bound once, with as many threads as torch has.

    Args:
        runtime: the package.
        path: of the graph.
        lm: the model it was made of.
        room: positions of the cache.
        rows: texts written at once.
    """

    name, instructions = "onnxruntime", "unrestricted"  # it asks the processor and nobody else

    def __init__(self, runtime: Any, path: Path, lm: LM, room: int, rows: int = 1) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        chosen = ["CPUExecutionProvider"]
        self.session = runtime.InferenceSession(path, options, providers=chosen)
        self.binding = self.session.io_binding()
        spec, self.length = lm.specs[0], 0
        self.logits_buffer = np.zeros((rows, 1, lm.config.vocabulary_size), dtype=np.float32)
        self.bound = runtime.OrtValue.ortvalue_from_numpy(self.logits_buffer)
        self.binding.bind_ortvalue_output("logits", self.bound)
        self.caches = []
        for number in range(lm.config.depth):
            for what in ("keys", "values"):
                empty = np.zeros((rows, spec.kv_heads, room, spec.head_width), dtype=np.float32)
                value = runtime.OrtValue.ortvalue_from_numpy(empty)
                self.binding.bind_ortvalue_input(f"{number}.{what}.past", value)
                self.binding.bind_ortvalue_output(f"{number}.{what}", value)
                self.caches.append((empty, value))

    def reset(self) -> None:
        """Empty the KV cache."""
        self.length = 0

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [B, T] and return the logits [B, V] after them."""
        rows, new = ids.shape
        self.length += new
        self.binding.bind_cpu_input("ids", np.ascontiguousarray(ids, dtype=np.int64))
        self.binding.bind_cpu_input("before", np.full(rows, self.length - 1, dtype=np.int32))
        self.binding.bind_cpu_input("total", np.array(self.length, dtype=np.int32))
        self.session.run_with_iobinding(self.binding)
        return self.bound.numpy()[:, 0]


CONTRIB = "com.microsoft"


class Graph:
    """Nodes and weights as they are added.

    Args:
        helper: of the package onnx, as is `numpy_helper`.
    """

    def __init__(self, onnx: Any) -> None:
        self.helper, self.arrays = onnx.helper, onnx.numpy_helper
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, tensor: Tensor | np.ndarray) -> str:
        """Add a weight and return its name."""
        array = tensor.detach().numpy() if isinstance(tensor, Tensor) else tensor
        self.weights.append(self.arrays.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, inputs: list[str], out: str | list[str], **attributes: Any) -> str:
        """Add a node and return its first output."""
        outs = [out] if isinstance(out, str) else out
        self.nodes.append(
            self.helper.make_node(kind, inputs, outs, name=f"/{outs[0]}", **attributes)
        )
        return outs[0]

    def multiply(self, x: str, name: str, weight: Tensor) -> str:
        """Add x W^T and return it."""
        return self.add("MatMul", [x, self.weight(f"{name}.weight", weight.T)], name)

    def norm(self, x: str, name: str, weight: Tensor, eps: float) -> str:
        """Add an RMS norm and return it."""
        given = {"axis": -1, "epsilon": eps, "stash_type": 1}
        inputs = [x, self.weight(f"{name}.weight", weight)]
        return self.add("SimplifiedLayerNormalization", inputs, name, **given)

    def sum_norm(self, x: str, y: str, name: str, weight: Tensor, eps: float) -> tuple[str, str]:
        """Add an RMS norm of x + y and return the sum and the norm."""
        inputs = [x, y, self.weight(f"{name}.weight", weight)]
        outs = [name, "", "", f"{name}.sum"]
        self.add("SkipSimplifiedLayerNormalization", inputs, outs, domain=CONTRIB, epsilon=eps)
        return f"{name}.sum", name


def graph_of(lm: LM, room: int) -> Any:
    """Return the model as an ONNX model in 32 bits.

    Args:
        lm: the model.
        room: positions of the cache.

    Raises:
        Absent: if onnx is not installed.
    """
    onnx = package("onnx", "onnx")
    graph, eps = Graph(onnx), lm.config.eps
    rotary = _rotary_tables(graph, lm, room)
    weights_of = list(layers(lm))
    table = graph.weight("embedding.weight", lm.embedding.tokens.weight)
    x = graph.add("Gather", [table, "ids"], "embedded")
    normed = graph.norm(x, "0.attention_norm", weights_of[0]["attention_norm"], eps)
    for number, weights in enumerate(weights_of):
        out = _attention(graph, lm, number, weights, normed, rotary)
        x, normed = graph.sum_norm(x, out, f"{number}.mlp_norm", weights["mlp_norm"], eps)
        out = _mlp(graph, number, weights, normed)
        last = number + 1 == len(weights_of)
        after = lm.norm.weight if last else weights_of[number + 1]["attention_norm"]
        name = "norm" if last else f"{number + 1}.attention_norm"
        x, normed = graph.sum_norm(x, out, name, after, eps)
    end = graph.weight("last", np.array([-1]))
    graph.multiply(graph.add("Gather", [normed, end], "ending", axis=1), "logits", head(lm))
    return _model(onnx, graph, lm, room)


def _rotary_tables(graph: Graph, lm: LM, room: int) -> list[str]:
    """Add sines and cosines [S, D / 2] of every position."""
    spec = lm.specs[0]
    frequencies = spec.position.theta ** (
        -torch.arange(0, spec.head_width, 2, dtype=torch.float64) / spec.head_width
    )
    angles = torch.arange(room, dtype=torch.float64)[:, None] * frequencies
    tables = {"cosines": angles.cos(), "sines": angles.sin()}
    return [graph.weight(name, table.float()) for name, table in tables.items()]


def _attention(
    graph: Graph, lm: LM, number: int, weights: dict[str, Tensor], x: str, rotary: list[str]
) -> str:
    spec = lm.specs[0]
    joined = torch.cat([weights[name] for name in "qkv"])
    packed = graph.multiply(x, f"{number}.qkv", joined)
    past = [f"{number}.{what}.past" for what in ("keys", "values")]
    present = [f"{number}.{what}" for what in ("keys", "values")]
    attended = graph.add(
        "GroupQueryAttention",
        [packed, "", "", *past, "before", "total", *rotary],
        [f"{number}.attended", *present],
        domain=CONTRIB,
        num_heads=spec.num_heads,
        kv_num_heads=spec.kv_heads,
        scale=spec.score_scale,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return graph.multiply(attended, f"{number}.o", weights["o"])


def _mlp(graph: Graph, number: int, weights: dict[str, Tensor], x: str) -> str:
    gate = graph.multiply(x, f"{number}.gate", weights["gate"])
    up = graph.multiply(x, f"{number}.up", weights["up"])
    activated = graph.add("QuickGelu", [gate], f"{number}.activated", domain=CONTRIB, alpha=1.0)
    inner = graph.add("Mul", [activated, up], f"{number}.inner")
    return graph.multiply(inner, f"{number}.down", weights["down"])


def _model(onnx: Any, graph: Graph, lm: LM, room: int) -> Any:
    helper, types = onnx.helper, onnx.TensorProto
    spec = lm.specs[0]
    cache = ["B", spec.kv_heads, room, spec.head_width]
    inputs = [
        helper.make_tensor_value_info("ids", types.INT64, ["B", "T"]),
        helper.make_tensor_value_info("before", types.INT32, ["B"]),
        helper.make_tensor_value_info("total", types.INT32, []),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", types.FLOAT, ["B", 1, lm.config.vocabulary_size])
    ]
    for number in range(lm.config.depth):
        for what in ("keys", "values"):
            name = f"{number}.{what}"
            inputs.append(helper.make_tensor_value_info(f"{name}.past", types.FLOAT, cache))
            outputs.append(helper.make_tensor_value_info(name, types.FLOAT, cache))
    body = helper.make_graph(graph.nodes, "llama", inputs, outputs, graph.weights)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(body, opset_imports=versions, ir_version=10)
