"""Packed modules whose products torchao computes.

Letters: N outputs, K inputs, C groups of inputs with one scale.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.native.matrix import Codes, decoded


def why_not() -> str:
    """Return why torchao is not used here, "" if it is."""
    try:
        from torchao.quantization import IntxUnpackedToInt8Tensor  # noqa: F401
    except ImportError as error:
        return f"torchao cannot be imported ({error}); pip install 'suffice[cuda]'"
    return ""


class ByTorchao(Packed):
    """A packed module that multiplies by a tensor of torchao, made of its codes and scales.

    The numbers are the same: nothing is rounded again. Products are computed in float32; inputs are
    not coded as the kernels do. The codes stay beside the tensor, which takes a byte for each
    weight in 4 bits, too: so the module is saved, loaded, moved and unpacked as the one it came
    from. In a recorded graph (`torch.compile`, `torch.export`) it is that one.
    """

    _weight: Tensor | None = None

    @classmethod
    def of(cls, matrix: Codes | Tensor, bias: Tensor | None = None) -> Packed:
        """Return a module of a packed matrix.

        Args:
            matrix: of 8 or 4 bits.
            bias: [N] or None.

        Raises:
            ConfigError: for a matrix in half precision, or if torchao is not there.
        """
        if reason := why_not():
            raise ConfigError(f"no map can go through torchao: {reason}.")
        if not isinstance(matrix, Codes):
            raise ConfigError(
                "torchao is given codes of 8 or 4 bits; half precision stays torch's."
            )
        return super().of(matrix, bias)

    @property
    def weight_of_torchao(self) -> Tensor:
        """The matrix as torchao holds it, made where it is first asked for."""
        if self._weight is None or self._weight.device != self.codes.device:
            self._weight = _tensor(*self.parts(), self.scheme.bits, self.outputs)
        return self._weight

    @property
    def kernel(self) -> str:
        """What multiplies here."""
        return "torchao"

    def told(self) -> None:
        """Return None: kernels leave this module to torchao."""
        return

    def _by_torch(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super()._by_torch(x)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight_of_torchao, bias).to(x.dtype)

    def _apply(self, *args: Any) -> ByTorchao:
        super()._apply(*args)
        self._weight = None
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._weight = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made of the codes."""
        return {**super().__getstate__(), "_weight": None}


class TorchaoLinear(ByTorchao, PackedLinear):
    """A linear map; see `ByTorchao`."""


class TorchaoEmbedding(ByTorchao, PackedEmbedding):
    """A row of features for each id: torchao scores features by rows, rows are read as before."""


def _tensor(codes: Tensor, scales: Tensor, bits: int, outputs: int) -> Tensor:
    """Return the matrix of some codes as a tensor of torchao."""
    from torchao.quantization import IntxUnpackedToInt8Tensor

    numbers = decoded(codes, torch.ones_like(scales), bits, outputs).to(torch.int8)
    each = scales.transpose(1, 2).flatten(0, 1)[:outputs].float().contiguous()
    return IntxUnpackedToInt8Tensor(
        qdata=numbers,
        scale=each,
        zero_point=torch.zeros_like(each, dtype=torch.int8),
        target_dtype={8: torch.int8, 4: torch.int4}[bits],
        block_size=(1, numbers.shape[1] // each.shape[1]),
        dtype=torch.float32,
        activation_quantization=None,
    )
