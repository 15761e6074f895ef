"""Matrices as the kernels read them.

Letters: N outputs, K inputs, P panels of 16 outputs, C groups of inputs with one scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from suffice.errors import ConfigError, ShapeError
from suffice.ops.native import library as of
from suffice.ops.native.library import available, library

KINDS = {torch.float32: of.F32, torch.float16: of.F16, torch.bfloat16: of.BF16}
PANEL = 16  # outputs whose codes lie together
BITS = {8: of.INT8, 4: of.INT4}
COLUMNS = {8: 4, 4: 8}  # inputs in a piece of 64 bytes
WIDEST = 1 << 15  # inputs with one scale, whose products add up within 32 bits


@dataclass(frozen=True, eq=False)
class Codes:
    """A matrix in 8 or 4 bits for each number.

    A weight is (code - zero) * scale, zero 128 or 8. Sixteen outputs lie together, padded with
    zeros behind the last one.

    Args:
        bits: of a code, 8 or 4.
        shape: (N, K).
        group: inputs with one scale.
        codes: uint8 [P, K / 4 or K / 8, 64]: in a piece four inputs of sixteen outputs, or eight,
            the first four in the low halves.
        scales: float16 [P, C, 16].

    Raises:
        ConfigError: for other bits, or a group that does not divide K or fill pieces.
        ShapeError: if codes or scales have another shape or dtype.
    """

    bits: int
    shape: tuple[int, int]
    group: int
    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        check_group(self.bits, inputs, self.group)
        panels = -(-outputs // PANEL)
        wanted = {
            "codes": (self.codes, torch.uint8, (panels, inputs // COLUMNS[self.bits], 64)),
            "scales": (self.scales, torch.float16, (panels, inputs // self.group, PANEL)),
        }
        for name, (tensor, dtype, shape) in wanted.items():
            if tensor.dtype is not dtype or tuple(tensor.shape) != shape:
                raise ShapeError(
                    f"{name} of a {outputs} x {inputs} matrix in {self.bits} bits are "
                    f"{tensor.dtype} {list(tensor.shape)}; they must be {dtype} {list(shape)}."
                )
            if not tensor.is_contiguous():
                raise ShapeError(f"{name} do not lie in one piece; give contiguous ones.")

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes


def check_group(bits: int, inputs: int, group: int) -> None:
    """Refuse groups that do not divide the inputs into whole pieces.

    Raises:
        ConfigError: saying which would.
    """
    if bits not in BITS:
        raise ConfigError(f"bits={bits}: give 8 or 4.")
    if not 1 <= group <= WIDEST or group % COLUMNS[bits] or inputs % group:
        raise ConfigError(
            f"group={group} for {inputs} inputs in {bits} bits: give a multiple of "
            f"{COLUMNS[bits]} that divides the inputs, at most {WIDEST:,}."
        )


def in_panels(codes: Tensor, scales: Tensor, bits: int) -> Codes:
    """Return codes as they lie in panels.

    Args:
        codes: int [N, K], 0 to 2^bits - 1.
        scales: float [N, C].
        bits: 8 or 4.

    Raises:
        ConfigError: if the groups are not whole pieces.
    """
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
    return Codes(
        bits=bits,
        shape=(outputs, inputs),
        group=group,
        codes=parts.flatten(2).contiguous(),
        scales=scales.to(torch.float16).contiguous(),
    )


def numbers_of(codes: Codes) -> Tensor:
    """Return the matrix of codes, float32 [N, K]."""
    return decoded(codes.codes, codes.scales, codes.bits, codes.shape[0])


def decoded(codes: Tensor, scales: Tensor, bits: int, outputs: int) -> Tensor:
    """Return the matrix, float32 [N, K], of the tensors of `Codes`."""
    parts = codes.view(*codes.shape[:2], PANEL, 4)
    if bits == 4:
        parts = torch.cat([parts & 15, parts >> 4], dim=-1)
    whole = parts.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs].float() - (1 << (bits - 1))
    each = scales.transpose(1, 2).flatten(0, 1)[:outputs].float()
    return (whole.view(outputs, each.shape[1], -1) * each[..., None]).flatten(1)


def decoded_rows(codes: Tensor, scales: Tensor, bits: int, rows: Tensor) -> Tensor:
    """Return some rows of the matrix, float32 [..., K], of the tensors of `Codes`.

    Args:
        codes: of `Codes`.
        scales: of `Codes`.
        bits: of a code.
        rows: int64 [...], which ones; legal ones.
    """
    panel, row = rows // PANEL, rows % PANEL
    parts = codes.view(*codes.shape[:2], PANEL, 4)[panel, :, row]
    if bits == 4:
        parts = torch.cat([parts & 15, parts >> 4], dim=-1)
    each = scales[panel, :, row].float()
    whole = parts.flatten(-2).float() - (1 << (bits - 1))
    return (whole.unflatten(-1, (each.shape[-1], -1)) * each[..., None]).flatten(-2)


def structure_of(weight: Tensor | Codes, bias: Tensor | None) -> of.Matrix:
    """Return the structure of a matrix that the kernels read; the tensors must outlive it.

    Raises:
        ConfigError: for a dtype the kernels do not read, or a tensor they cannot.
        ShapeError: for what is no matrix, or a bias of other outputs.
    """
    if isinstance(weight, Codes):
        kind, data, group = BITS[weight.bits], weight.codes, weight.group
        readable(weight.scales)
        scales = weight.scales.data_ptr()
    else:
        if weight.dim() != 2:
            raise ShapeError(f"weights have shape {list(weight.shape)}; give [outputs, inputs].")
        if weight.dtype not in KINDS:
            raise ConfigError(f"weights are {weight.dtype}; kernels read float32, 16 or bfloat16.")
        kind, data, group, scales = KINDS[weight.dtype], weight, 0, None
    readable(data)
    if bias is not None:
        readable(bias)
        if bias.dtype is not torch.float32:
            raise ConfigError(f"biases are {bias.dtype}; kernels read float32.")
        if tuple(bias.shape) != weight.shape[:1]:
            raise ShapeError(
                f"a bias of shape {list(bias.shape)} for {weight.shape[0]} outputs; give one "
                "number for each."
            )
    return of.Matrix(
        kind=kind,
        rows=weight.shape[0],
        columns=weight.shape[1],
        group=group,
        data=data.data_ptr(),
        scales=scales,
        bias=None if bias is None else bias.data_ptr(),
    )


def readable(tensor: Tensor) -> None:
    """Refuse tensors whose memory the kernels cannot read.

    Raises:
        ConfigError: for another device, or strides.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ConfigError(
            f"a tensor on {tensor.device} with strides {tensor.stride()}: kernels read contiguous "
            "ones of the CPU."
        )


def multiply(matrix: of.Matrix, x: Tensor) -> Tensor:
    """Return x W^T + b, float32; with a matrix of codes x is coded in 8 bits, too.

    Args:
        matrix: what `structure_of` returned; its tensors are still there.
        x: float32 on the CPU.

    Shapes:
        x: [..., K] -> [..., N]

    Raises:
        ShapeError: if x has other features; nothing was read then.
    """
    if x.shape[-1] != matrix.columns:
        raise ShapeError(f"x has {x.shape[-1]} features; this matrix reads {matrix.columns}.")
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], matrix.rows)
    if y.numel():
        rows = x.numel() // matrix.columns
        threads = torch.get_num_threads()
        library().suffice_multiply(matrix, x.data_ptr(), rows, y.data_ptr(), threads)
    return y


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


def structure_of_parts(
    numbers: Tensor, scales: Tensor | None, bias: Tensor | None, bits: int, outputs: int
) -> of.Matrix:
    """Return the same of a packed matrix, in codes or in a half type.

    Raises:
        ShapeError: if numbers and scales do not belong together; nothing was read then.
        ConfigError: for a tensor the kernels cannot read.
    """
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
    if plain(x) and fits(numbers, bias) and few(x, bits):
        return multiply(structure_of_parts(numbers, scales, bias, bits, outputs), x)
    return by_torch(x, numbers, scales, bias, bits, outputs)


def _like(x: Tensor, *others: Tensor | int | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], others[-1])


OPERATORS.impl("packed_linear", _packed_linear, "CompositeExplicitAutograd")
torch.library.register_fake("suffice::packed_linear", _like, lib=OPERATORS)
