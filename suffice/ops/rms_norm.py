"""The root-mean-square norm: x / sqrt(mean(x^2) + eps) * w, fp32 or better inside.

On a CPU torch makes it of half a dozen passes over x, and of more in the backward, which its layer
norm does in one kernel. With a mean of 0 that backward is the one of this norm, less the mean over
features of w * gradient, which a product of a matrix and a vector puts back.

Letters: M d_model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from suffice.ops.native import stock

EXACT = (torch.float32, torch.float64)


def rms_norm(x: Tensor, weight: Tensor, eps: float, gate: Tensor | None = None) -> Tensor:
    """Return x scaled to a mean square of 1 over its last axis, times w, in the dtype of x.

    A gate multiplies the result by silu(gate).
    """
    if _in_one_kernel(x, weight, gate):
        order = stock.UNGATED if gate is None else stock.GATE_LAST
        return stock.norm(x, weight, gate, eps=eps, order=order)
    normed = _normed(x, weight, eps)
    return normed if gate is None else normed * F.silu(gate)


def _in_one_kernel(x: Tensor, weight: Tensor, gate: Tensor | None) -> bool:
    if not (stock.keeps_no_gradient(x, weight, gate) and stock.suits_weights(weight)):
        return False
    return bool(x.numel()) and stock.suits(x, gate)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        if not _is_plain_cpu(x, weight):
            return F.rms_norm(x, x.shape[-1:], weight, eps)
        exact = torch.promote_types(x.dtype, torch.float32)
        return _RMSNorm.apply(x.to(exact), weight.to(exact), eps).to(x.dtype)
    if x.is_cpu and (x.dtype in EXACT or x.dtype is not weight.dtype):  # as under autocast
        exact = x.to(torch.promote_types(x.dtype, weight.dtype))
        return (exact * _factors(exact, eps) * weight).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _is_plain_cpu(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x.device.type == weight.device.type == "cpu"
        and not any(map(torch._C._functorch.is_functorch_wrapped_tensor, (x, weight)))
        and forward_ad._current_level < 0
    )


def _factors(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) of each row: [..., 1]."""
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.square().div_(x.shape[-1]).add_(eps).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        factors = _factors(x, eps)
        ctx.save_for_backward(x, weight, factors)
        ctx.eps = eps
        return (x * factors).mul_(weight)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, weight, factors = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(gradient, x, weight, ctx.eps), None
        to_x, to_weight, _ = ctx.needs_input_grad
        means = torch.zeros_like(factors)
        x_gradient, weight_gradient, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, x.shape[-1:], means, factors, weight, None, [to_x, to_weight, False]
        )
        if to_x:
            with torch.autocast(x.device.type, enabled=False):  # a backward pass may run inside
                lost = torch.matmul(gradient, weight).unsqueeze(-1) / x.shape[-1]
            x_gradient.add_(lost.mul_(factors))
        return x_gradient, weight_gradient, None


def _differentiable(
    gradient: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    factors = _factors(x, eps)
    scaled = gradient * weight
    along = (scaled * x).mean(dim=-1, keepdim=True)
    to_weight = (gradient * x * factors).reshape(-1, x.shape[-1]).sum(dim=0)
    return factors * (scaled - x * factors.square() * along), to_weight
