"""Products with matrices in 32, 16, 8 or 4 bits, in native CPU kernels.

Letters: N outputs, K inputs, P panels of 16 outputs, C groups of inputs with one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from suffice.errors import ConfigError, ShapeError
from suffice.ops.native import library as native
from suffice.ops.native.library import available, library

KINDS = {torch.float32: native.F32, torch.float16: native.F16, torch.bfloat16: native.BF16}
PANEL = 16  # outputs whose codes lie together
BITS = {8: native.INT8, 4: native.INT4}
COLUMNS = {8: 4, 4: 8}  # inputs in a piece of 64 bytes
MAX_GROUP = 1 << 15  # inputs with one scale, whose products add up within 32 bits


@dataclass(frozen=True, eq=False)
class Codes:
    """A matrix in 8 or 4 bits a number: a weight is (code - zero) * scale, zero 128 or 8.

    Sixteen outputs form a panel; the last one is padded with zeros.
    """

    bits: int  # 8 or 4
    shape: tuple[int, int]  # (N, K)
    group: int  # inputs with one scale
    # uint8 [P, K / 4 or K / 8, 64]: four inputs of sixteen outputs, or eight, low halves first
    codes: Tensor
    scales: Tensor  # float16 [P, C, 16]

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        check_group(self.bits, inputs, self.group)
        panels = -(-outputs // PANEL)
        for name, tensor, dtype, shape in (
            ("codes", self.codes, torch.uint8, (panels, inputs // COLUMNS[self.bits], 64)),
            ("scales", self.scales, torch.float16, (panels, inputs // self.group, PANEL)),
        ):
            if tensor.dtype is not dtype or tuple(tensor.shape) != shape:
                raise ShapeError(
                    f"{name} of a {outputs} x {inputs} matrix in {self.bits} bits are "
                    f"{tensor.dtype} {list(tensor.shape)}; they must be {dtype} {list(shape)}."
                )
            if not tensor.is_contiguous():
                raise ShapeError(f"{name} are not contiguous; call .contiguous() first.")

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def check_group(bits: int, inputs: int, group: int) -> None:
    """Raise ConfigError for groups that do not divide the inputs into full pieces."""
    if bits not in BITS:
        raise ConfigError(f"bits={bits}: give 8 or 4.")
    if not 1 <= group <= MAX_GROUP or group % COLUMNS[bits] or inputs % group:
        raise ConfigError(
            f"group={group} for {inputs} inputs in {bits} bits: give a multiple of "
            f"{COLUMNS[bits]} that divides the inputs, at most {MAX_GROUP:,}."
        )


def in_panels(codes: Tensor, scales: Tensor, bits: int) -> Codes:
    """Return codes [N, K] of 0 to 2^bits - 1 and scales [N, C], laid out in panels."""
    outputs, inputs = codes.shape
    group = inputs // scales.shape[1]
    check_group(bits, inputs, group)
    more = -outputs % PANEL
    zero = 1 << (bits - 1)
    codes = torch.cat([codes, codes.new_full((more, inputs), zero)]).to(torch.uint8)
    scales = torch.cat([scales, scales.new_zeros(more, scales.shape[1])])
    parts = codes.view(-1, PANEL, inputs // COLUMNS[bits], COLUMNS[bits]).transpose(1, 2)
    if bits == 4:
        parts = parts[..., :4] | (parts[..., 4:] << 4)
    scales = scales.view(-1, PANEL, scales.shape[1]).transpose(1, 2)
    parts, scales = parts.flatten(2).contiguous(), scales.to(torch.float16).contiguous()
    return Codes(bits=bits, shape=(outputs, inputs), group=group, codes=parts, scales=scales)


def numbers_of(codes: Codes) -> Tensor:
    """Return the matrix of codes, float32 [N, K]."""
    return decoded(codes.codes, codes.scales, codes.bits, codes.shape[0])


def decoded(codes: Tensor, scales: Tensor, bits: int, outputs: int) -> Tensor:
    """Return the matrix, float32 [N, K], of the tensors of `Codes`."""
    numbers = _numbers(codes, bits).transpose(1, 2).flatten(0, 1)[:outputs]
    return _scaled(numbers, scales.transpose(1, 2).flatten(0, 1)[:outputs], bits)


def decoded_rows(codes: Tensor, scales: Tensor, bits: int, rows: Tensor) -> Tensor:
    """Return rows int64 [...] of the matrix, float32 [..., K], of the tensors of `Codes`."""
    panel, row = rows // PANEL, rows % PANEL
    return _scaled(_numbers(codes, bits)[panel, :, row], scales[panel, :, row], bits)


def _numbers(codes: Tensor, bits: int) -> Tensor:
    """Return the codes one by one: uint8 [P, K / 4 or K / 8, 16, 4 or 8]."""
    numbers = codes.view(*codes.shape[:2], PANEL, 4)
    return numbers if bits == 8 else torch.cat([numbers & 15, numbers >> 4], dim=-1)


def _scaled(numbers: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return codes [..., pieces, 4 or 8] of rows times their scales [..., C]: [..., K]."""
    signed = numbers.flatten(-2).float() - (1 << (bits - 1))
    return (signed.unflatten(-1, (scales.shape[-1], -1)) * scales.float()[..., None]).flatten(-2)


def structure_of(weight: Tensor | Codes, bias: Tensor | None) -> native.Matrix:
    """Return the structure of a matrix that the kernels read; the tensors must outlive it."""
    if isinstance(weight, Codes):
        kind, data, scales, group = BITS[weight.bits], weight.codes, weight.scales, weight.group
    else:
        if weight.dim() != 2:
            raise ShapeError(f"weights have shape {list(weight.shape)}; give [outputs, inputs].")
        if weight.dtype not in KINDS:
            raise ConfigError(f"weights are {weight.dtype}; kernels read float32, 16 or bfloat16.")
        kind, data, scales, group = KINDS[weight.dtype], weight, None, 0
    outputs, inputs = weight.shape
    if bias is not None and bias.dtype is not torch.float32:
        raise ConfigError(f"biases are {bias.dtype}; kernels read float32.")
    if bias is not None and tuple(bias.shape) != (outputs,):
        raise ShapeError(
            f"a bias of shape {list(bias.shape)} for {outputs} outputs; give one number for each."
        )
    return native.Matrix(kind, outputs, inputs, group, *map(_pointer, (data, scales, bias)))


def _pointer(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ConfigError(
            f"a tensor on {tensor.device} with strides {tensor.stride()}: kernels read contiguous "
            "ones of the CPU."
        )
    return tensor.data_ptr()


def multiply(matrix: native.Matrix, x: Tensor, threads: int | None = None) -> Tensor:
    """Return x W^T + b, float32 [..., N], for x float32 [..., K] on the CPU.

    With a matrix of codes x is quantised to 8 bits, too. The tensors of `matrix` must be alive.
    Without `threads` torch's number of them is used.
    """
    if x.shape[-1] != matrix.columns:
        raise ShapeError(f"x has {x.shape[-1]} features; this matrix reads {matrix.columns}.")
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], matrix.rows)
    if y.numel():
        rows = x.numel() // matrix.columns
        threads = threads or torch.get_num_threads()
        library().suffice_multiply(matrix, x.data_ptr(), rows, y.data_ptr(), threads)
    return y


HALF = 16  # bits
UNPACK_ROWS = 64  # rows from which halves are unpacked: the kernel rereads them for every four

OPERATORS = torch.library.Library("suffice", "FRAGMENT")
OPERATORS.define(
    "packed_linear(Tensor x, Tensor numbers, Tensor? scales, Tensor? bias, int bits, int outputs) "
    "-> Tensor"
)


def plain(x: Tensor) -> bool:
    """Return whether x is a float32 tensor on a CPU and no transform of torch is at work."""
    return (
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def supports(numbers: Tensor, bias: Tensor | None) -> bool:
    """Return whether the kernels can read a matrix and its bias here."""
    exact = bias is None or bias.dtype is torch.float32
    return available() and numbers.device.type == "cpu" and exact


def is_small_batch(x: Tensor, bits: int) -> bool:
    """Return whether there are so few rows that the kernels win; with codes they always do."""
    return bits != HALF or x.numel() < UNPACK_ROWS * x.shape[-1]


def unpacked(numbers: Tensor, scales: Tensor | None, bits: int, outputs: int) -> Tensor:
    """Return the matrix, float32 [N, K]."""
    return numbers.float() if scales is None else decoded(numbers, scales, bits, outputs)


def by_torch(
    x: Tensor, numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> Tensor:
    """Return x W^T + b of the unpacked matrix, in x's dtype, with gradients to x."""
    weight = unpacked(numbers, scales, bits, outputs).to(x.dtype)
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def structure_of_parts(
    numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> native.Matrix:
    """Return the structure of a packed matrix, or of one in half precision without scales."""
    if scales is None:
        if len(numbers) != outputs:
            raise ShapeError(f"a matrix of {len(numbers)} outputs is read as one of {outputs}.")
        return structure_of(numbers, bias)
    if numbers.dim() != 3 or scales.dim() != 3:
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
    if plain(x) and supports(numbers, bias) and is_small_batch(x, bits):
        return multiply(structure_of_parts(numbers, scales, bias, bits, outputs), x)
    return by_torch(x, numbers, scales, bias, bits, outputs)


def _like(x: Tensor, *others: Tensor | int | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], others[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch's
    x, numbers, scales, _, bits, outputs = inputs
    ctx.save_for_backward(numbers, scales)
    ctx.settings = bits, outputs, x.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    numbers, scales = ctx.saved_tensors
    bits, outputs, dtype = ctx.settings
    return grad @ unpacked(numbers, scales, bits, outputs).to(dtype), *[None] * 5


OPERATORS.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")
torch.library.register_fake("suffice::packed_linear", _like, lib=OPERATORS)
torch.library.register_autograd(
    "suffice::packed_linear", _backward, setup_context=_save, lib=OPERATORS
)
