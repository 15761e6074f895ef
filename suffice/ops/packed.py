"""The product with a matrix of 16, 8 or 4 bits, native where it can be.

Without gradients, on a CPU with the kernels, inputs in float32 meet the packed numbers; else torch
unpacks the matrix for each call. `torch.compile` and `torch.export` see one operator of torch,
`suffice::packed_linear`, which does the same; plain calls do without it, as it costs more than a
small product.

Letters: N outputs, K inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from suffice.errors import ConfigError, ShapeError
from suffice.native import structures as of
from suffice.native.library import available
from suffice.native.matrix import BITS, Codes, decoded, structure_of
from suffice.native.multiply import multiply

HALF = 16  # bits
MANY = 64  # rows from which halves are unpacked: the kernel reads them again for every four

OPERATORS = torch.library.Library("suffice", "FRAGMENT")
OPERATORS.define(
    "packed_linear(Tensor x, Tensor numbers, Tensor? scales, Tensor? bias, int bits, int outputs) "
    "-> Tensor"
)


def learns(x: Tensor) -> bool:
    """Return whether gradients of x are wanted."""
    return torch.is_grad_enabled() and x.requires_grad


def plain(x: Tensor) -> bool:
    """Return whether x is a float32 tensor on a CPU that no transformation of torch looks into."""
    return (
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def fits(numbers: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernels can read a matrix and its bias here."""
    return (
        available()
        and numbers.device.type == "cpu"
        and (bias is None or bias.dtype is torch.float32)
    )


def few(x: Tensor, bits: int) -> bool:
    """Return whether there are so few rows that the kernels win; with codes they always do."""
    return bits != HALF or x.numel() < MANY * x.shape[-1]


def unpacked(numbers: Tensor, scales: Tensor | None, bits: int, outputs: int) -> Tensor:
    """Return the matrix, float32 [N, K]."""
    return numbers.float() if scales is None else decoded(numbers, scales, bits, outputs)


def by_torch(
    x: Tensor, numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> Tensor:
    """Return x W^T + b of the unpacked matrix, in x's dtype, with gradients to x."""
    weight = unpacked(numbers, scales, bits, outputs).to(x.dtype)
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def told(
    numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> of.Matrix:
    """Return what the kernels are told of the matrix.

    Raises:
        ShapeError: if numbers and scales do not belong together; nothing was read then.
        ConfigError: for a tensor the kernels cannot read.
    """
    if scales is None:
        if len(numbers) != outputs:
            raise ShapeError(f"a matrix of {len(numbers)} outputs is read as one of {outputs}.")
        return structure_of(numbers, bias)
    if numbers.dim() != 3 or scales.dim() != 3:  # noqa: PLR2004
        raise ShapeError(
            f"codes have shape {list(numbers.shape)} and scales {list(scales.shape)}; give them "
            "as `Codes` has them, with three axes."
        )
    if bits not in BITS:
        raise ConfigError(f"codes of bits={bits}: give 8 or 4.")
    inputs = numbers.shape[1] * 32 // bits  # a piece of 64 bytes holds 4 inputs in 8 bits
    group = inputs // max(scales.shape[1], 1)
    codes = Codes(bits=bits, shape=(outputs, inputs), group=group, codes=numbers, scales=scales)
    return structure_of(codes, bias)


def _packed_linear(
    x: Tensor, numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> Tensor:
    if plain(x) and fits(numbers, bias) and few(x, bits):
        return multiply(told(numbers, scales, bias, bits, outputs), x)
    return by_torch(x, numbers, scales, bias, bits, outputs)


def _like(x: Tensor, *given: Tensor | int | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], given[-1])


OPERATORS.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")
torch.library.register_fake("suffice::packed_linear", _like, lib=OPERATORS)
