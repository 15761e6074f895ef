"""Models with quantised matrices: the scheme of each matrix, and products by torchao."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, install_line
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear, Scheme
from suffice.ops.linear import Linear
from suffice.ops.native.matrix import Codes, decoded


def schemes_of(model: nn.Module) -> dict[str, Scheme]:
    """Return the scheme of each packed module, by its name."""
    return {n: m.scheme for n, m in model.named_modules() if isinstance(m, Packed)}


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def make_room(model: nn.Module, schemes: Mapping[str, Scheme]) -> None:
    """Replace modules by empty packed ones of these schemes, into which weights can be loaded."""
    packed: dict[str, Packed] = {}
    modules = dict(model.named_modules())
    for name, scheme in schemes.items():
        old = modules.get(name)
        if type(old) not in (Linear, nn.Linear, nn.Embedding):
            raise ConfigError(f"{name!r:.80} is not a linear map or embedding of this model.")
        kind = PackedEmbedding if isinstance(old, nn.Embedding) else PackedLinear
        bias = getattr(old, "bias", None) is not None
        packed[name] = kind(*old.weight.shape, scheme, bias=bias, device=old.weight.device)
    for name, module in packed.items():
        replace_module(model, name, module)


def check(model: nn.Module) -> None:
    """Raise ConfigError if a packed module holds NaN or Inf."""
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            try:
                module.check()
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error


@torch.no_grad()
def unpack(model: nn.Module) -> None:
    """Turn packed modules back into float32 ones with the rounded weights, in place.

    Without the kernels this makes a model as fast as it was before it was packed, and as large.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, Packed):
            replace_module(model, name, module.as_linear())


def torchao_missing() -> str:
    """Return why torchao cannot be used, "" if it can."""
    try:
        from torchao.quantization import IntxUnpackedToInt8Tensor  # noqa: F401
    except ImportError as error:
        return f"torchao cannot be imported ({error}); {install_line('suffice[cuda]')}"
    return ""


class ByTorchao(Packed):
    """A packed module that multiplies by a tensor of torchao, made of its codes and scales.

    The codes stay next to it, so that the module is saved, moved and unpacked as before. Nothing is
    rounded again, and products are float32. A recorded graph does not use torchao.
    """

    _weight: Tensor | None = None

    @classmethod
    def of(cls, matrix: Codes | Tensor, bias: Tensor | None = None) -> Packed:
        if reason := torchao_missing():
            raise ConfigError(f"no map can go through torchao: {reason}.")
        if not isinstance(matrix, Codes):
            raise ConfigError(
                "torchao is given codes of 8 or 4 bits; half precision stays torch's."
            )
        return super().of(matrix, bias)

    @property
    def weight_of_torchao(self) -> Tensor:
        """The matrix as a tensor of torchao, made on first use."""
        if self._weight is None or self._weight.device != self.codes.device:
            self._weight = _torchao_tensor(*self.stored(), self.scheme.bits, self.outputs)
        return self._weight

    @property
    def kernel(self) -> str:
        return "torchao"

    def native_matrix(self) -> None:
        """Return None: torchao multiplies, not the native kernels."""
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
        """Leave out the tensor, which is made of the codes."""
        return {**super().__getstate__(), "_weight": None}


class TorchaoLinear(ByTorchao, PackedLinear):
    """A linear map; see `ByTorchao`."""


class TorchaoEmbedding(ByTorchao, PackedEmbedding):
    """An embedding; torchao multiplies where it is a tied head, see `ByTorchao`."""


def _torchao_tensor(codes: Tensor, scales: Tensor, bits: int, outputs: int) -> Tensor:
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


DEVICES = ("cuda",)  # on which a loaded model uses torchao by default
HALF = "half precision is not a scheme of torchao"


def with_torchao(model: nn.Module) -> dict[str, str]:
    """Let torchao multiply by the matrices of 8 and 4 bits of a model, in place.

    Weights do not change, so outputs change by the order of sums alone; after the native kernels,
    also because inputs are no longer quantised to 8 bits. `suffice.models.folder.load` does this by
    itself on CUDA. The model is saved as before, in codes; load it again to undo this.

    Args:
        model: packed by `quantise`, on any device.

    Returns:
        Why other packed modules are left as they are, by their names.

    Raises:
        ConfigError: if torchao is not there, or the model holds no codes of 8 or 4 bits.

    Example:
        >>> import torch
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> from suffice.quantise import quantise, with_torchao
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=32, depth=1, mlp_width=64)
        >>> lm = LMConfig(**sizes).build(preset("standard", 32, 2, causal=True))
        >>> report = quantise(lm, bits=8)
        >>> with_torchao(lm), lm.blocks[0].mlp.up.kernel
        ({}, 'torchao')
    """
    packed = {name: m for name, m in model.named_modules() if isinstance(m, Packed)}
    replacements = {n: _by_torchao(m) for n, m in packed.items() if m.scheme.group is not None}
    if not replacements:
        raise ConfigError(
            "the model holds no codes for torchao; pack it into 8 or 4 bits (`quantise`) first."
        )
    for name, module in replacements.items():
        replace_module(model, name, module)
    return {name: HALF for name in packed if name not in replacements}


def use_torchao_by_default(model: nn.Module, device: str) -> None:
    """Call `with_torchao` for a packed model on a device without our kernels, if installed."""
    has_codes = any(scheme.group is not None for scheme in schemes_of(model).values())
    if device in DEVICES and has_codes and not torchao_missing():
        with_torchao(model)


def packed_products(model: object, device: str) -> str:
    """Return which library multiplies packed matrices, if torchao does or could; else ""."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    packed = [module for module in modules if isinstance(module, Packed)]
    if any(isinstance(module, ByTorchao) for module in packed):
        return "packed maps by torchao"
    if device not in DEVICES or not packed:
        return ""
    if all(module.scheme.group is None for module in packed):
        reason = HALF
    else:
        reason = torchao_missing() or "`suffice.quantise.with_torchao` was not called"
    return f"packed maps by torch, which unpacks each at each call: {reason}"


def _by_torchao(module: Packed) -> Packed:
    kind = TorchaoEmbedding if isinstance(module, PackedEmbedding) else TorchaoLinear
    codes, scales = module.stored()
    matrix = Codes(
        bits=module.scheme.bits,
        shape=(module.outputs, module.inputs),
        group=module.scheme.group,
        codes=codes,
        scales=scales,
    )
    return kind.of(matrix, module.bias)
