"""OpenVINO's CPU plugin on a Llama-like model as a graph whose KV cache is its state.

It is the runtime that openvino-genai drives, whose own pipeline starts at a tokenizer and at files
of another converter. Weights of fewer bits have a scale for each row (8 bits) or group (4 bits), as
its own tools for compression write them.

Letters: B rows, T tokens, H query heads, G key/value heads, D head width.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.decoders import Decoder, GreedyPeer, head, layers
from benchmarks.peers.installed import package
from suffice.models import LM
from suffice.spec import AttentionSpec

BITS = (32, 16, 8, 4)
GROUP = 32  # weights with one scale in 4 bits
LARGEST = {8: 127, 4: 7}  # codes


def make(lm: LM, *, bits: int, room: int, folder: Path, rows: int) -> Decoder:  # noqa: ARG001
    """Return the peer, which grows its cache and reads no files.

    Raises:
        Absent: if openvino is not installed.
    """
    return OpenVino(package("openvino", "openvino"), lm, bits, room, rows)


def restricted() -> str:
    """Return the instruction set that products are restricted to; norms and attention are not."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").lower()


class OpenVino(GreedyPeer):
    """A compiled graph and its state, with as many threads as torch has.

    Args:
        runtime: the package.
        lm: the model.
        bits: of a weight.
        room: positions it has angles for.
        rows: texts written at once.
    """

    name = "openvino"

    def __init__(self, runtime: Any, lm: LM, bits: int, room: int, rows: int = 1) -> None:
        options = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f16" if bits < 32 else "f32",
        }
        if restricted() == "avx2":  # else it asks for products that such a processor has not
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self.graph = Graph(runtime, lm, bits, room)
        self.compiled = runtime.Core().compile_model(self.graph.model(), "CPU", options)
        self.request = self.compiled.create_infer_request()
        self.instructions = f"products {restricted()}" if restricted() else "unrestricted"
        self.rows, self.length = np.arange(rows, dtype=np.int32), 0

    def reset(self) -> None:
        """Empty the KV cache."""
        self.request.reset_state()
        self.length = 0

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [B, T] and return the logits [B, V] after them."""
        rows, new = ids.shape
        places = np.arange(self.length, self.length + new, dtype=np.int64)
        inputs = {"ids": ids.astype(np.int64), "places": places, "rows": self.rows[:rows]}
        self.request.infer(inputs, share_inputs=True)
        self.length += new
        return self.request.get_output_tensor(0).data[:, 0]


class Graph:
    """A model in OpenVINO's operations.

    Args:
        runtime: the package.
        lm: the model.
        bits: of a weight.
        room: positions it has angles for.
    """

    def __init__(self, runtime: Any, lm: LM, bits: int, room: int) -> None:
        self.runtime, self.ops = runtime, package("openvino", "openvino.opset13")
        self.lm, self.bits, self.room = lm, bits, room
        self.state: list[Any] = []  # what is written back
        self.codes: list[np.ndarray] = []  # constants read them where they are

    def model(self) -> Any:
        """Return the graph of ids [B, T], places [T] and rows [B] to logits [B, 1, V]."""
        ops, lm = self.ops, self.lm
        ids = ops.parameter([-1, -1], np.int64, name="ids")
        places = ops.parameter([-1], np.int64, name="places")
        self.rows = ops.parameter([-1], np.int32, name="rows")
        self.angles = self._angles(places)
        table = ops.constant(lm.embedding.tokens.weight.detach().numpy())
        self.batch = ops.gather(ops.shape_of(ids), [0], 0)
        x = ops.gather(table, ids, 0)
        for number, weights in enumerate(layers(lm)):
            normed = self._norm(x, weights["attention_norm"])
            x = ops.add(x, self._attention(normed, number, weights))
            x = ops.add(x, self._mlp(self._norm(x, weights["mlp_norm"]), weights))
        last = ops.gather(self._norm(x, lm.norm.weight), np.array([-1]), 1)
        logits = ops.result(self._multiply(last, head(lm)), name="logits")
        inputs = [ids, places, self.rows]
        return self.runtime.Model([logits], self.state, inputs, "llama")

    def _weight(self, weight: Tensor) -> Any:
        """Return a weight [N, K] as the runtime recognises a compressed one."""
        ops, bits = self.ops, self.bits
        numbers = weight.detach()
        if bits == 32:
            return ops.constant(numbers.numpy())
        if bits == 16:
            half = ops.constant(numbers.half().numpy())
            return ops.convert(half, "f32")
        rows, columns = numbers.shape
        grouped = numbers.view(rows, -1, GROUP) if bits == 4 else numbers
        scales = grouped.abs().amax(-1, keepdim=True) / LARGEST[bits]
        codes = (grouped / scales).round().to(torch.int8).numpy()
        if bits == 8:
            stored = ops.constant(codes)
        else:
            flat = codes.reshape(-1, 2).astype(np.uint8) & 15
            packed = flat[:, 0] | (flat[:, 1] << 4)
            self.codes.append(packed)
            tensor = self.runtime.Tensor(packed, codes.shape, self.runtime.Type.i4)
            stored = package("openvino", "openvino.op").Constant(tensor)
        whole = ops.multiply(ops.convert(stored, "f32"), ops.constant(scales.numpy()))
        return whole if bits == 8 else ops.reshape(whole, [rows, columns], special_zero=False)

    def _multiply(self, x: Any, weight: Tensor) -> Any:
        return self.ops.matmul(x, self._weight(weight), transpose_a=False, transpose_b=True)

    def _norm(self, x: Any, weight: Tensor) -> Any:
        ops = self.ops
        square = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(square, np.float32(self.lm.config.eps)))
        normed = ops.multiply(x, ops.divide(np.float32(1), root))
        return ops.multiply(normed, ops.constant(weight.detach().view(1, 1, -1).numpy()))

    def _mlp(self, x: Any, weights: dict[str, Tensor]) -> Any:
        gate, up = (self._multiply(x, weights[name]) for name in ("gate", "up"))
        return self._multiply(self.ops.multiply(self.ops.swish(gate), up), weights["down"])

    def _angles(self, places: Any) -> tuple[Any, Any]:
        """Return cosines and sines [1, 1, T, D] of the positions."""
        ops, spec = self.ops, self.lm.specs[0]
        frequencies = spec.position.theta ** (
            -torch.arange(0, spec.head_width, 2, dtype=torch.float64) / spec.head_width
        )
        angles = torch.arange(self.room, dtype=torch.float64)[:, None] * frequencies
        angles = torch.cat([angles, angles], dim=1)
        tables = (table.float()[None, None].numpy() for table in (angles.cos(), angles.sin()))
        cosines, sines = (ops.gather(ops.constant(table), places, 2) for table in tables)
        return cosines, sines

    def _rotated(self, x: Any) -> Any:
        ops = self.ops
        first, second = ops.split(x, 3, 2).outputs()
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        cosines, sines = self.angles
        return ops.add(ops.multiply(x, cosines), ops.multiply(turned, sines))

    def _heads(self, x: Any, heads: int, width: int) -> Any:
        """Return [B, H, T, D] of [B, T, H D]."""
        split = self.ops.reshape(x, [0, 0, heads, width], special_zero=True)
        return self.ops.transpose(split, [0, 2, 1, 3])

    def _cached(self, x: Any, name: str, spec: AttentionSpec) -> Any:
        """Return the keys or values of all tokens, which the state has from now on."""
        ops = self.ops
        shape = self.runtime.PartialShape([-1, spec.kv_heads, -1, spec.head_width])
        info = package("openvino", "openvino.op.util").VariableInfo()
        info.data_shape, info.data_type, info.variable_id = shape, self.runtime.Type.f32, name
        variable = package("openvino", "openvino.op.util").Variable(info)
        sizes = [ops.constant(np.array([n])) for n in (spec.kv_heads, 0, spec.head_width)]
        empty = ops.broadcast(np.float32(0), ops.concat([self.batch, *sizes], 0))
        past = ops.gather(ops.read_value(empty, variable), self.rows, 0)
        whole = ops.concat([past, x], 2)
        self.state.append(ops.assign(whole, variable))
        return whole

    def _attention(self, x: Any, number: int, weights: dict[str, Tensor]) -> Any:
        ops, spec = self.ops, self.lm.specs[0]
        width, shared = spec.head_width, spec.num_heads // spec.kv_heads
        q = self._rotated(self._heads(self._multiply(x, weights["q"]), spec.num_heads, width))
        k = self._rotated(self._heads(self._multiply(x, weights["k"]), spec.kv_heads, width))
        v = self._heads(self._multiply(x, weights["v"]), spec.kv_heads, width)
        k, v = self._cached(k, f"{number}.k", spec), self._cached(v, f"{number}.v", spec)
        if shared > 1:
            k, v = self._repeated(k, shared), self._repeated(v, shared)
        out = ops.scaled_dot_product_attention(q, k, v, causal=True)
        joined = ops.reshape(
            ops.transpose(out, [0, 2, 1, 3]), [0, 0, spec.num_heads * width], special_zero=True
        )
        return self._multiply(joined, weights["o"])

    def _repeated(self, x: Any, times: int) -> Any:
        """Return keys or values once for each query head."""
        ops, spec = self.ops, self.lm.specs[0]
        wide = ops.broadcast(
            ops.unsqueeze(x, 2),
            np.array([1, 1, times, 1, 1]),
            broadcast_spec="BIDIRECTIONAL",
        )
        shape = [0, spec.num_heads, -1, spec.head_width]
        return ops.reshape(wide, shape, special_zero=True)
