"""Gated activations, act(gate) * up: what feed-forward maps of decoders have inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from suffice.ops.native import library as native
from suffice.ops.native import stock

GATES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "swiglu": (F.silu, native.SWIGLU),
    "geglu": (F.gelu, native.GEGLU),
    "geglu_tanh": (partial(F.gelu, approximate="tanh"), native.GEGLU_TANH),
}
"""By name: the activation, and its number in the kernels."""


def gated(gate: Tensor, up: Tensor, name: str) -> Tensor:
    """Return act(gate) * up for a `name` of `GATES`, in one kernel on a CPU without gradients."""
    activation, number = GATES[name]
    # gradients of the kernel's gradients do not exist
    if stock.keeps_no_gradient(gate, up) and stock.suits(gate, up):
        return stock.glu(gate, up, number)
    return activation(gate) * up
