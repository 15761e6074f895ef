"""Norms, gated MLPs, rotary embeddings and linear maps of few rows of stock models in our kernels.

Layers of many classes compute the same, and layers of one name do not: a norm or a rotation is
replaced only where it gives the numbers of transformers on drawn inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from suffice.ops.linear import FEW_ROWS, threads_of_few_rows
from suffice.ops.native import library as native
from suffice.ops.native import stock
from suffice.ops.native.matrix import multiply, structure_of

PARTS = ("down_proj", "act_fn", "gate_proj", "up_proj")
"""What the forward of a gated MLP reads, in its order."""
ROWS_AT_ONCE = 512  # positions of an MLP without gradients: its inner numbers stay in the cache
NORM, MLP, LINEAR = "RMSNorm", "gated MLP", f"matmul of 1 to {FEW_ROWS} tokens"


def kind_of(module: nn.Module) -> str:
    """Return NORM, MLP, LINEAR or "" for what a module's class seems to be."""
    kind, weight = type(module), getattr(module, "weight", None)
    if kind is nn.Linear:
        return LINEAR
    code = getattr(kind.forward, "__code__", None)
    if code is None or not kind.__module__.startswith("transformers."):
        return ""
    if code.co_names == PARTS:
        return MLP
    is_norm = NORM in kind.__name__ and isinstance(weight, Tensor) and weight.dim() == 1
    return NORM if is_norm and _eps(module) is not None else ""


def _eps(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def forward_of(module: Any) -> MethodType | str:
    """Return a forward of ours with the numbers of the class of a module, or why it has none."""
    weight, kind = getattr(module, "weight", None), kind_of(module)
    if kind == MLP:
        return _mlp_of(module)
    if not stock.suits_weights(weight, getattr(module, "bias", None)):
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}, not float32"
    if kind == NORM:
        return _norm_of(module)
    if not weight.is_contiguous():
        return "its weight is not contiguous"
    threads = threads_of_few_rows(torch.get_num_threads())
    return MethodType(_linear(threads), module) if threads else "torch is as fast on this machine"


@torch.no_grad()
def _mlp_of(module: Any) -> MethodType | str:
    ends = 4.0, 256.0  # some activations are clipped far from 0
    x = torch.cat([torch.linspace(-e, e, 64, dtype=torch.float32) for e in ends])
    for number in (native.SWIGLU, native.GEGLU, native.GEGLU_TANH):
        if _agree(module.act_fn(x), stock.glu(x, torch.ones_like(x), number)):
            return MethodType(_mlp(number), module)
    return f"its activation, {type(module.act_fn).__name__}, is neither SiLU nor GELU"


@torch.no_grad()
def _norm_of(module: Any) -> MethodType | str:
    gated = "gate" in type(module).forward.__code__.co_varnames[:3]
    sizes = 1 + gated, 3, module.weight.numel()
    inputs = torch.randn(sizes, generator=torch.Generator(), dtype=torch.float32)
    if not stock.suits(*inputs):
        return "autocast, a trace or a transform of functions is active"
    expected = type(module).forward(module, *inputs)
    for order in (stock.GATE_FIRST, stock.GATE_LAST) if gated else (stock.UNGATED,):
        for offset in (0.0, 1.0):
            forward = MethodType(_norm(order, offset), module)
            if _agree(forward(*inputs), expected):
                return forward
    return "it computes something else than RMSNorm"


def _agree(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-5, atol=1e-5)


def _norm(order: int, offset: float) -> Callable[..., Tensor]:
    def forward(self: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        gates = () if gate is None else (gate,)
        alone = gate is None and order != stock.UNGATED
        if alone or not (stock.suits(hidden_states, gate) and stock.suits_weights(self.weight)):
            return type(self).forward(self, hidden_states, *gates)
        width = getattr(self, "group_size", None)
        options: dict[str, Any] = {"eps": _eps(self), "offset": offset, "order": order}
        return stock.norm(hidden_states, self.weight, gate, width=width, **options)

    return forward


def _mlp(activation: int) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        if not stock.suits(x):
            return type(self).forward(self, x)
        maps = self.gate_proj, self.up_proj, self.down_proj
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in maps)
        rows = x.numel() // x.shape[-1]
        if torch.is_grad_enabled() or hooked or rows <= ROWS_AT_ONCE:
            return _through(self, x, activation)
        parts = x.reshape(rows, -1).split(ROWS_AT_ONCE)
        out = torch.cat([_through(self, part, activation) for part in parts])
        return out.view(*x.shape[:-1], -1)

    return forward


def _through(mlp: Any, x: Tensor, activation: int) -> Tensor:
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    here = stock.suits(gate, up)
    return mlp.down_proj(stock.glu(gate, up, activation) if here else mlp.act_fn(gate) * up)


def _linear(threads: int) -> Callable[..., Tensor]:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        few, weight, bias = x.numel() <= FEW_ROWS * self.in_features, self.weight, self.bias
        if not (few and stock.suits(x) and stock.keeps_no_gradient(x, weight, bias)):
            return nn.Linear.forward(self, x)
        if not (stock.suits_weights(weight, bias) and weight.is_contiguous()):
            return nn.Linear.forward(self, x)
        return multiply(structure_of(weight, bias), x, threads)

    return forward


def rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Return queries and keys [B, H, T, D], whose first features are turned by halves."""
    if unsqueeze_dim == 1 and stock.suits(q, k, cos, sin) and not cos.requires_grad:
        return stock.rotate(q, cos, sin), stock.rotate(k, cos, sin)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    width = cos.shape[-1]

    def turned(x: Tensor) -> Tensor:
        first, second = x[..., :width].chunk(2, dim=-1)
        out = x[..., :width] * cos + torch.cat([-second, first], dim=-1) * sin
        return torch.cat([out, x[..., width:]], dim=-1)

    return turned(q), turned(k)


ROTARY = {"apply_rotary_pos_emb": rotary}
"""By the name that modelling files give the function."""


@lru_cache(maxsize=256)
def turns_by_halves(function: Callable[..., Any]) -> bool:
    """Return whether a function of transformers gives the numbers of `rotary`."""
    q, k = torch.randn(2, 1, 2, 3, 8, generator=torch.Generator())
    cos, sin = torch.randn(2, 1, 3, 8, generator=torch.Generator())
    try:
        expected = function(q, k, cos, sin)
    except RuntimeError:  # its tables have other shapes
        return False
    return all(map(_agree, rotary(q, k, cos, sin), expected))
