"""What layers of published models compute between products, in native CPU kernels with gradients.

Root-mean-square norms with gates, gated activations, rotary embeddings, short convolutions: in
float32, eagerly. `suits` says whether a call may come here.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.ops.call import inside_transform
from suffice.ops.native import library as native
from suffice.ops.native.library import available, library
from suffice.ops.op import is_traced, needs_gradient

UNGATED, GATE_FIRST, GATE_LAST = range(3)
"""When a norm multiplies with silu(gate): never, before it normalises, or after."""
MAX_TAPS = 16


def suits(*activations: Tensor | None) -> bool:
    """Return whether kernels can compute an eager call with these inputs."""
    for x in activations:
        if x is not None and not (type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu):
            return False
    return available() and not (
        torch.is_autocast_enabled("cpu") or is_traced() or inside_transform()
    )


def suits_weights(*weights: Tensor | None) -> bool:
    """Return whether kernels can read these parameters."""
    return all(x is None or (x.dtype is torch.float32 and x.is_cpu) for x in weights)


def keeps_no_gradient(*tensors: Tensor | None) -> bool:
    """Return whether states may change in place."""
    return not needs_gradient(*(x for x in tensors if x is not None))


def call(name: str, *arguments: Any) -> None:
    """Run a kernel on this process's threads; tensors become pointers."""
    places = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
    getattr(library(), name)(*places, torch.get_num_threads())


def _run(function: Any, *arguments: Any) -> Tensor:
    """Return what a function of autograd gives; it records nothing where no gradient is wanted."""
    if needs_gradient(*(x for x in arguments if isinstance(x, Tensor))):
        return function.apply(*arguments)
    return function.forward(_Unrecorded(), *arguments)


class _Unrecorded:
    """The context of a call without gradients."""

    def save_for_backward(self, *_: Tensor | None) -> None:
        """Keep nothing."""


def _rows(x: Tensor) -> Tensor:
    """Return x [..., N] as [rows, N], whose last axis is dense."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


def norm(
    x: Tensor,
    weight: Tensor | None,
    gate: Tensor | None = None,
    *,
    eps: float,
    offset: float = 0.0,
    order: int = UNGATED,
    width: int | None = None,
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) (weight + offset), and silu(gate) in its `order`.

    x and gate are [..., N], weight [N]; means are over groups of `width`, N unless given.
    """
    if gate is None and x.dim() == 4 and x.stride(1) < x.stride(2):  # heads before positions
        turned = norm(x.transpose(1, 2), weight, eps=eps, offset=offset, width=width)
        return turned.transpose(1, 2)
    out = _run(
        _Norm,
        _rows(x),
        None if gate is None else _rows(gate),
        None if weight is None else weight.contiguous(),
        (eps, offset),
        order,
        width or x.shape[-1],
    )
    return out.view(x.shape)


class _Norm(torch.autograd.Function):
    """Norms of rows [M, N]."""

    @staticmethod
    def forward(ctx, x, gate, weight, numbers, order, width):  # noqa: ANN001, ANN205
        gate_row = 0 if gate is None else gate.stride(0)
        sizes = (len(x), x.shape[1] // width, width, order, x.stride(0), gate_row, 0)
        structure = native.GatedNorm(*sizes, *numbers)
        out = x.new_empty(x.shape)
        call("suffice_norm", ctypes.byref(structure), x, gate, weight, out)
        ctx.save_for_backward(x, gate, weight)
        ctx.structure = structure
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        x, gate, weight = ctx.saved_tensors
        grad, structure = _rows(grad), ctx.structure
        structure.x_row, structure.grad_row = x.stride(0), grad.stride(0)  # of what was unpacked
        structure.gate_row = 0 if gate is None else gate.stride(0)
        x_grad, gate_grad = (None if part is None else x.new_empty(x.shape) for part in (x, gate))
        sums = None
        if ctx.needs_input_grad[2]:
            sums = x.new_zeros(torch.get_num_threads(), x.shape[1])
        places = (x, gate, weight, grad, x_grad, gate_grad, sums)
        call("suffice_norm_back", ctypes.byref(structure), *places)
        return x_grad, gate_grad, None if sums is None else sums.sum(dim=0), None, None, None


class _GLU(torch.autograd.Function):
    """activation(gate) * up, by the number that `native` gives the activation."""

    @staticmethod
    def forward(ctx, gate, up, activation):  # noqa: ANN001, ANN205
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        out = gate.new_empty(gate.shape)
        call("suffice_glu", activation, gate.numel(), gate, up, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        gate, up = ctx.saved_tensors
        grads = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
        places = (gate, up, grad.contiguous(), *grads)
        call("suffice_glu_back", ctx.activation, gate.numel(), *places)
        return *grads, None


class _Rotate(torch.autograd.Function):
    """Heads [B, H, T, D] turned by halves, with tables [B or 1, T, turned]."""

    @staticmethod
    def forward(ctx, x, cosines, sines):  # noqa: ANN001, ANN205
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, back=0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        return _rotated(grad, *ctx.saved_tensors, back=1), None, None


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, *, back: int) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    cosines, sines = cosines.contiguous(), sines.contiguous()
    batch, heads, length, width = x.shape
    steps = cosines[0].numel() if len(cosines) == batch else 0
    sizes = (batch, heads, length, width, cosines.shape[2], steps, back)
    structure = native.Rotation(*sizes, native.Strides(*x.stride()[:3]))
    out = x.new_empty(batch, length, heads, width)
    call("suffice_rotate", ctypes.byref(structure), x, cosines, sines, out)
    return out.transpose(1, 2)


class _Convolve(torch.autograd.Function):
    """Causal sums of rows [B, T, C] by weights [C, taps], then silu where it is wanted."""

    @staticmethod
    def forward(ctx, x, weight, bias, documents, silu):  # noqa: ANN001, ANN205
        x = x if x.stride(2) == 1 else x.contiguous()
        documents = None if documents is None else documents.long().contiguous()
        by_tap, bias = weight.t().contiguous(), None if bias is None else bias.contiguous()
        structure = native.Convolution(*x.shape, weight.shape[1], silu, *x.stride()[:2])
        structure.documents = None if documents is None else documents.data_ptr()
        out = x.new_empty(x.shape)
        call("suffice_convolve", ctypes.byref(structure), x, by_tap, bias, out)
        ctx.save_for_backward(x, by_tap, bias, documents)
        ctx.structure = structure
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        x, by_tap, bias, documents = ctx.saved_tensors
        grad, structure = grad if grad.stride(2) == 1 else grad.contiguous(), ctx.structure
        structure.grad_batch, structure.grad_row = grad.stride()[:2]
        structure.x_batch, structure.x_row = x.stride()[:2]  # of what was unpacked
        structure.documents = None if documents is None else documents.data_ptr()
        inner, x_grad = x.new_empty(x.shape), x.new_empty(x.shape)
        sums = x.new_zeros(torch.get_num_threads(), len(by_tap) + 1, x.shape[2])
        places = (x, by_tap, bias, grad, inner, x_grad, sums)
        call("suffice_convolve_back", ctypes.byref(structure), *places)
        sums = sums.sum(dim=0)
        return x_grad, sums[:-1].t(), None if bias is None else sums[-1], None, None


glu, rotate, convolve = (partial(_run, function) for function in (_GLU, _Rotate, _Convolve))
"""By (gate, up, activation), (x, cosines, sines) and (x, weight, bias, documents, silu)."""
