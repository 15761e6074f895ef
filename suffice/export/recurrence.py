"""Recurrences in ONNX graphs: the operator LinearAttention of ONNX Runtime.

A traced graph holds the library's operator `native_recurrence`, which other programs do not have.
ONNX Runtime's computes the same: the state decays before it is corrected, and is read after.
Queries are scaled before, so its scale is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule

import suffice.ops.native.recurrence  # noqa: F401 - registers the operator
from suffice.errors import ConfigError

OWN = torch.ops.suffice.native_recurrence.default
OPERATOR = "com.microsoft::LinearAttention"
RULES = {  # by whether the state decays, and whether values are corrected
    (False, False): "linear",
    (True, False): "gated",
    (False, True): "delta",
    (True, True): "gated_delta",
}


def is_recurrent(graph: torch.export.ExportedProgram) -> bool:
    """Return whether a graph holds the library's operator."""
    parts = (part for part in graph.graph_module.modules() if isinstance(part, GraphModule))
    return any(node.target is OWN for part in parts for node in part.graph.nodes)


def with_linear_attention(graph: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a graph whose recurrences are ONNX Runtime's operators.

    Raises:
        ConfigError: if there are some, and this torch cannot write operators of other domains.
    """
    if not is_recurrent(graph):
        return graph
    if not hasattr(torch.onnx, "ops"):
        raise ConfigError(
            f"torch {torch.__version__} cannot write {OPERATOR}, which this model needs; export it "
            "with torch 2.8 or newer."
        )
    return graph.run_decompositions({OWN: _linear_attention})


def _linear_attention(  # noqa: PLR0917 - arguments of the operator that it replaces
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return outputs and state as ONNX Runtime's operator, which runs in its graphs alone."""
    del documents  # a state continues one document of each row
    heads = q.shape[1]
    packed = [None if x is None else x.transpose(1, 2).flatten(2) for x in (q, k, v, decay, beta)]
    out, after = torch.onnx.ops.symbolic_multi_out(
        OPERATOR,
        (*packed[:3], state, *packed[3:]),
        {
            "q_num_heads": heads,
            "kv_num_heads": heads,
            "scale": 1.0,
            "update_rule": RULES[decay is not None, beta is not None],
        },
        dtypes=(torch.float32, torch.float32),
        shapes=(packed[2].shape, state.shape),
        version=1,
    )
    return out.unflatten(2, (heads, -1)).transpose(1, 2), after
