"""A Llama-like model as a graph of ONNX Runtime's own fused nodes, with a cache of keys and values.

Attention is one node with the cache in place and the turn of queries and keys inside, fed by one
product for queries, keys and values; norms take the sum before them. The logits are those behind
the last token.

Letters: T tokens, S room of the cache, G key/value heads, D head width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from suffice.measure.edge.peers import package
from suffice.measure.edge.peers.names import head, layers
from suffice.models import LM

OWN = "com.microsoft"


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

    def add(self, kind: str, inputs: list[str], out: str | list[str], **given: Any) -> str:
        """Add a node and return its first output."""
        outs = [out] if isinstance(out, str) else out
        self.nodes.append(self.helper.make_node(kind, inputs, outs, name=f"/{outs[0]}", **given))
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
        self.add("SkipSimplifiedLayerNormalization", inputs, outs, domain=OWN, epsilon=eps)
        return f"{name}.sum", name


def graph_of(lm: LM, room: int) -> Any:
    """Return the model as an ONNX model in 32 bits.

    Args:
        lm: the model.
        room: positions of the cache.

    Raises:
        ConfigError: if onnx is not installed.
    """
    onnx = package("onnx", "onnx")
    graph, eps = Graph(onnx), lm.config.eps
    turns = _turns(graph, lm, room)
    own = list(layers(lm))
    table = graph.weight("embedding.weight", lm.embedding.tokens.weight)
    x = graph.add("Gather", [table, "ids"], "embedded")
    normed = graph.norm(x, "0.attention_norm", own[0]["attention_norm"], eps)
    for number, weights in enumerate(own):
        out = _attention(graph, lm, number, weights, normed, turns)
        x, normed = graph.sum_norm(x, out, f"{number}.mlp_norm", weights["mlp_norm"], eps)
        out = _mlp(graph, number, weights, normed)
        last = number + 1 == len(own)
        after = lm.norm.weight if last else own[number + 1]["attention_norm"]
        name = "norm" if last else f"{number + 1}.attention_norm"
        x, normed = graph.sum_norm(x, out, name, after, eps)
    end = graph.weight("last", np.array([-1]))
    graph.multiply(graph.add("Gather", [normed, end], "ending", axis=1), "logits", head(lm))
    return _model(onnx, graph, lm, room)


def _turns(graph: Graph, lm: LM, room: int) -> list[str]:
    """Add sines and cosines [S, D / 2] of every position."""
    spec = lm.specs[0]
    frequencies = spec.position.theta ** (
        -torch.arange(0, spec.head_width, 2, dtype=torch.float64) / spec.head_width
    )
    angles = torch.arange(room, dtype=torch.float64)[:, None] * frequencies
    tables = {"cosines": angles.cos(), "sines": angles.sin()}
    return [graph.weight(name, table.float()) for name, table in tables.items()]


def _attention(
    graph: Graph, lm: LM, number: int, weights: dict[str, Tensor], x: str, turns: list[str]
) -> str:
    spec = lm.specs[0]
    joined = torch.cat([weights[name] for name in "qkv"])
    packed = graph.multiply(x, f"{number}.qkv", joined)
    past = [f"{number}.{what}.past" for what in ("keys", "values")]
    present = [f"{number}.{what}" for what in ("keys", "values")]
    seen = graph.add(
        "GroupQueryAttention",
        [packed, "", "", *past, "before", "total", *turns],
        [f"{number}.seen", *present],
        domain=OWN,
        num_heads=spec.num_heads,
        kv_num_heads=spec.kv_heads,
        scale=spec.score_scale,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return graph.multiply(seen, f"{number}.o", weights["o"])


def _mlp(graph: Graph, number: int, weights: dict[str, Tensor], x: str) -> str:
    gate = graph.multiply(x, f"{number}.gate", weights["gate"])
    up = graph.multiply(x, f"{number}.up", weights["up"])
    bent = graph.add("QuickGelu", [gate], f"{number}.bent", domain=OWN, alpha=1.0)
    inner = graph.add("Mul", [bent, up], f"{number}.inner")
    return graph.multiply(inner, f"{number}.down", weights["down"])


def _model(onnx: Any, graph: Graph, lm: LM, room: int) -> Any:
    helper, types = onnx.helper, onnx.TensorProto
    spec = lm.specs[0]
    cache = [1, spec.kv_heads, room, spec.head_width]
    inputs = [
        helper.make_tensor_value_info("ids", types.INT64, [1, "T"]),
        helper.make_tensor_value_info("before", types.INT32, [1]),
        helper.make_tensor_value_info("total", types.INT32, []),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", types.FLOAT, [1, 1, lm.config.vocabulary_size])
    ]
    for number in range(lm.config.depth):
        for what in ("keys", "values"):
            name = f"{number}.{what}"
            inputs.append(helper.make_tensor_value_info(f"{name}.past", types.FLOAT, cache))
            outputs.append(helper.make_tensor_value_info(name, types.FLOAT, cache))
    body = helper.make_graph(graph.nodes, "llama", inputs, outputs, graph.weights)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(OWN, 1)]
    return helper.make_model(body, opset_imports=versions, ir_version=10)
