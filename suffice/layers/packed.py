"""Linear maps and embeddings with weights in 16, 8 or 4 bits, which are not trained.

Letters: N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.ops.linear import Linear
from suffice.ops.native import library as native
from suffice.ops.native import matrix as kernels
from suffice.ops.native.matrix import COLUMNS, PANEL, Codes, check_group, decoded_rows, multiply
from suffice.ops.op import needs_gradient
from suffice.utils.records import check_fields

DEFAULT = {8: 128, 4: 32}  # inputs with one scale, at most


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Storage of the numbers of a matrix: in 16 (half precision), 8 or 4 bits."""

    bits: int
    group: int | None = None  # inputs with one scale, a half-precision number; None for 16 bits

    def __post_init__(self) -> None:
        check_fields(self)
        if self.bits not in (16, *COLUMNS):
            raise ConfigError(f"bits={self.bits}: give 16, 8 or 4.")
        if (self.group is None) != (self.bits == 16):  # noqa: PLR2004
            raise ConfigError(
                f"bits={self.bits} with group={self.group}: 8 and 4 bits have groups of inputs "
                "with one scale, 16 bits have none."
            )

    @classmethod
    def of(cls, inputs: int, bits: int, group: int | None = None) -> Scheme:
        """Return the scheme for a matrix of `inputs` columns; its group is the widest that fits."""
        if bits in COLUMNS and group is None:
            wide = COLUMNS[bits]
            if inputs % wide:
                raise ConfigError(f"{inputs} inputs: {bits} bits need a multiple of {wide}")
            group = max(g for g in range(wide, DEFAULT[bits] + 1, wide) if inputs % g == 0)
        scheme = cls(bits=bits, group=group)
        scheme.check(inputs)
        return scheme

    def check(self, inputs: int) -> None:
        """Raise ConfigError if the groups do not divide the inputs of a matrix."""
        if self.group is not None:
            check_group(self.bits, inputs, self.group)

    def to_json(self) -> dict[str, Any]:
        return {"bits": self.bits} | ({} if self.group is None else {"group": self.group})

    @classmethod
    def from_json(cls, data: Any) -> Scheme:
        if not isinstance(data, dict) or not {"bits"} <= data.keys() <= {"bits", "group"}:
            raise ConfigError(f'{data!r:.80} is not a scheme; write {{"bits": 8, "group": 32}}.')
        return cls(**data)

    def __str__(self) -> str:
        """Return a short name, such as "int8/128": codes of 8 bits in groups of 128."""
        return "float16" if self.group is None else f"int{self.bits}/{self.group}"


HALVES = ("scales", "weight")  # buffers that stay in half precision when a module is cast


class Packed(nn.Module):
    """A quantised matrix [N, K] with or without a bias; both are buffers.

    With 8 and 4 bits the native kernels quantise inputs to 8 bits in each call, too, by the largest
    value of each group, with gradients and without; a gradient passes as if they had not been.
    Without the kernels, in other dtypes and inside transforms torch dequantises the matrix in each
    call and leaves inputs as they are; on CUDA torchao may multiply instead
    (`suffice.quantise.with_torchao`).
    """

    def __init__(
        self,
        outputs: int,
        inputs: int,
        scheme: Scheme,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        scheme.check(inputs)
        self.outputs, self.inputs, self.scheme = outputs, inputs, scheme
        if scheme.group is None:
            weight = torch.zeros(outputs, inputs, dtype=torch.float16, device=device)
            self.register_buffer("weight", weight)
        else:
            panels, pieces = -(-outputs // PANEL), inputs // COLUMNS[scheme.bits]
            codes = torch.zeros(panels, pieces, 64, dtype=torch.uint8, device=device)
            scales = torch.zeros(
                panels, inputs // scheme.group, PANEL, dtype=torch.float16, device=device
            )
            self.register_buffer("codes", codes)
            self.register_buffer("scales", scales)
        self.register_buffer("bias", torch.zeros(outputs, device=device) if bias else None)
        self._names = ("weight",) if scheme.group is None else ("codes", "scales")
        self._native: tuple[tuple[Any, ...], native.Matrix | None] | None = None

    @classmethod
    def of(cls, matrix: Codes | Tensor, bias: Tensor | None = None) -> Packed:
        """Return a module of a quantised matrix, or of one in half precision (float16 [N, K])."""
        if isinstance(matrix, Codes):
            scheme = Scheme(bits=matrix.bits, group=matrix.group)
            buffers = {"codes": matrix.codes, "scales": matrix.scales}
        else:
            if matrix.dtype is not torch.float16:
                raise ShapeError(f"the matrix is {matrix.dtype}; give float16, or codes.")
            scheme, buffers = Scheme(bits=16), {"weight": matrix.detach().contiguous()}
        module = cls(*matrix.shape, scheme, bias=bias is not None, device="meta")
        if bias is not None:
            buffers["bias"] = bias.detach().to(torch.float32).contiguous()
        for name, tensor in buffers.items():
            setattr(module, name, tensor)
        return module

    def product(self, x: Tensor) -> Tensor:
        """Return x W^T + b of x [..., K]: [..., N]."""
        if x.shape[-1] != self.inputs:
            raise ShapeError(f"x has {x.shape[-1]} features; this map reads {self.inputs}.")
        args = (x, *self.stored(), self.bias, self.scheme.bits, self.outputs)
        if torch.compiler.is_compiling():
            return torch.ops.suffice.packed_linear(*args)  # one node of the graph
        if kernels.plain(x) and kernels.is_small_batch(x, self.scheme.bits):
            matrix = self.native_matrix()
            if matrix is not None:
                if needs_gradient(x):  # the same numbers, with a gradient
                    return torch.ops.suffice.packed_linear(*args)
                return multiply(matrix, x)
        return kernels.by_torch(*args)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows [..., K] of ids [...], float32."""
        codes, scales = self.stored()
        if scales is None:
            return F.embedding(ids, codes).float()
        indices = torch.arange(self.outputs, device=ids.device)[:, None]
        rows = F.embedding(ids, indices)[..., 0]  # raises for ids beyond N, which are padding
        return decoded_rows(codes, scales, self.scheme.bits, rows)

    def dequantised(self) -> Tensor:
        """Return the matrix, float32 [N, K]."""
        return kernels.unpacked(*self.stored(), self.scheme.bits, self.outputs)

    def native_matrix(self) -> native.Matrix | None:
        """Return the descriptor that the native kernels read; None if they cannot."""
        codes, scales, bias = (self._buffers.get(n) for n in (self._names[0], "scales", "bias"))
        tensors = (codes, scales, bias)
        key = (codes.shape, *(0 if t is None else t.data_ptr() for t in tensors))
        if self._native is None or self._native[0] != key:
            matrix = None
            if kernels.supports(codes, bias):
                matrix = kernels.structure_of_parts(*tensors, self.scheme.bits, self.outputs)
            self._native = key, matrix
        return self._native[1]

    def check(self) -> None:
        """Raise ConfigError if a scale, or a weight in half precision, is not finite."""
        for name in HALVES:
            if name in self._buffers and not bool(self._buffers[name].isfinite().all()):
                raise ConfigError(f"{name} holds NaN or Inf.")

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    @property
    def kernel(self) -> str:
        """Instructions of the native kernels, or "torch", which dequantises in each call."""
        device = next(self.buffers()).device
        on_cpu = device.type == "cpu" and native.available()
        return native.instructions() if on_cpu else "torch"

    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}, {self.scheme}, bias={self.bias is not None}"

    def stored(self) -> tuple[Tensor, Tensor | None]:
        """Return the codes and scales, or the weight in half precision and None."""
        return (self.weight, None) if self.scheme.group is None else (self.codes, self.scales)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Packed:
        halves = {name: self._buffers[name] for name in HALVES if name in self._buffers}
        super()._apply(fn, recurse)
        for name, before in halves.items():
            if self._buffers[name].dtype is not torch.float16:
                self._buffers[name] = before.to(self._buffers[name].device)
        self._native = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the descriptor, which points into memory."""
        return {**self.__dict__, "_native": None}


class PackedLinear(Packed):
    """A linear map with a quantised matrix; see `Packed`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b for x [..., K]."""
        return self.product(x)

    def as_linear(self) -> Linear:
        sizes = (self.inputs, self.outputs)
        linear = Linear(*sizes, bias=self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self.dequantised())
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.float())
        return linear


class PackedEmbedding(Packed):
    """An embedding with a quantised matrix; see `Packed`. `product` serves as a tied head."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids)

    def as_linear(self) -> nn.Embedding:
        return nn.Embedding.from_pretrained(self.dequantised(), freeze=False)
