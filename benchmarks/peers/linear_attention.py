"""ONNX Runtime's operator LinearAttention, alone in a graph.

Letters: B batch, H heads, T positions, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.peers.installed import package

RULES = {  # by whether the state decays, and whether values are corrected
    (False, False): "linear",
    (True, False): "gated",
    (False, True): "delta",
    (True, True): "gated_delta",
}
NAMES = ("query", "key", "value", "state", "decay", "beta")


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, state: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return what runs the operator on these tensors, in the layout that it reads.

    Tensors are as `suffice.ops.recurrence.Sequence` has them; the outputs [B, H, T, E] are views.

    Raises:
        Absent: if onnxruntime or onnx is not installed.
    """
    runtime, onnx = package("onnxruntime", "onnxruntime"), package("onnx", "onnx")
    heads, parts = q.shape[1], (q, k, v, state, decay, beta)
    feeds = {
        name: (x if name == "state" else x.transpose(1, 2).flatten(2)).numpy()
        for name, x in zip(NAMES, parts, strict=True)
        if x is not None
    }
    node = onnx.helper.make_node(
        "LinearAttention",
        [name if name in feeds else "" for name in NAMES],
        ["out", "after"],
        domain="com.microsoft",
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=1.0,
        update_rule=RULES[decay is not None, beta is not None],
    )
    values = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
        for names in (feeds, node.output)
    ]
    versions = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "peer", *values), opset_imports=versions, ir_version=10
    )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run() -> tuple[Tensor, Tensor]:
        out, after = map(torch.from_numpy, session.run(None, feeds))
        return out.unflatten(2, (heads, -1)).transpose(1, 2), after

    return run
