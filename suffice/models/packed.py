"""Models some of whose matrices are packed: what is packed how, and modules for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear, Scheme
from suffice.ops.linear import Linear
from suffice.ops.native.matrix import Codes, decoded


def schemes_of(model: nn.Module) -> dict[str, Scheme]:
    """Return the scheme of each packed module, by its name."""
    return {n: m.scheme for n, m in model.named_modules() if isinstance(m, Packed)}


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of that name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def make_room(model: nn.Module, schemes: Mapping[str, Scheme]) -> None:
    """Put empty packed modules where the schemes say; their numbers are loaded later.

    Args:
        model: on any device, "meta" too.
        schemes: by the names of linear maps and embeddings.

    Raises:
        ConfigError: for a name that is none of those, or a scheme that does not fit.
    """
    packed: dict[str, Packed] = {}
    modules = dict(model.named_modules())
    for name, scheme in schemes.items():
        old = modules.get(name)
        if type(old) not in (Linear, nn.Linear, nn.Embedding):
            raise ConfigError(f"{name!r:.80} is no linear map or embedding of this model.")
        kind = PackedEmbedding if isinstance(old, nn.Embedding) else PackedLinear
        bias = getattr(old, "bias", None) is not None
        packed[name] = kind(*old.weight.shape, scheme, bias=bias, device=old.weight.device)
    for name, module in packed.items():
        replace_module(model, name, module)


def check(model: nn.Module) -> None:
    """Refuse packed numbers that mean nothing.

    Raises:
        ConfigError: naming the module.
    """
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            try:
                module.check()
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error


@torch.no_grad()
def unpack(model: nn.Module) -> None:
    """Turn packed modules back into maps in float32, in place.

    What was rounded stays rounded. Without the kernels this makes a model as fast as it was
    before it was packed, and as large.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, Packed):
            replace_module(model, name, module.as_linear())


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


DEVICES = ("cuda",)  # where a loaded model takes torchao by itself


def with_torchao(model: nn.Module) -> dict[str, str]:
    """Let torchao multiply by the matrices of 8 and 4 bits of a model, in place.

    The numbers stay what they are, and so do answers but for the order of sums; where the native
    kernels served before, inputs are no longer coded in 8 bits. `suffice.models.folder.load` does
    it by itself on CUDA. The model is saved as before, in codes; load it anew to be rid of torchao.

    Args:
        model: packed by `quantise`, on any device.

    Returns:
        Why other packed modules stay, by their names.

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
    found = {name: one for name, one in model.named_modules() if isinstance(one, Packed)}
    coded = {name: one for name, one in found.items() if one.scheme.group is not None}
    if not coded:
        raise ConfigError(
            "the model holds no codes for torchao; pack it into 8 or 4 bits (`quantise`) first."
        )
    made = {name: _by_torchao(module) for name, module in coded.items()}
    for name, module in made.items():
        replace_module(model, name, module)
    return {name: "half precision is no scheme of torchao" for name in found if name not in coded}


def where_it_serves(model: nn.Module, device: str) -> None:
    """Call `with_torchao` for a model on a device that needs it, if torchao is there."""
    packed = [one for one in model.modules() if isinstance(one, Packed)]
    coded = any(one.scheme.group is not None for one in packed)
    if device in DEVICES and coded and not why_not():
        with_torchao(model)


def packed_products(model: object, device: str) -> str:
    """Return what multiplies by packed matrices, where it is torchao or might be; else "".

    Args:
        model: a module; what is none has no packed maps.
        device: where it lies.

    Example:
        >>> packed_products(nn.Linear(2, 2), "cuda")
        ''
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    packed = [one for one in modules if isinstance(one, Packed)]
    if any(isinstance(one, ByTorchao) for one in packed):
        return "packed maps by torchao"
    if device not in DEVICES or not packed:
        return ""
    if all(one.scheme.group is None for one in packed):
        reason = "half precision is no scheme of torchao"
    else:
        reason = why_not() or "`suffice.quantise.with_torchao` was not called"
    return f"packed maps by torch, which unpacks each at each call: {reason}"


def _by_torchao(module: Packed) -> Packed:
    kind = TorchaoEmbedding if isinstance(module, PackedEmbedding) else TorchaoLinear
    numbers, scales = module.parts()
    codes = Codes(
        bits=module.scheme.bits,
        shape=(module.outputs, module.inputs),
        group=module.scheme.group,
        codes=numbers,
        scales=scales,
    )
    return kind.of(codes, module.bias)
