"""Models whose packed maps go through torchao: on CUDA, where there are no kernels of our own."""

from __future__ import annotations

from torch import nn

from suffice.errors import ConfigError
from suffice.layers.by_torchao import ByTorchao, TorchaoEmbedding, TorchaoLinear, why_not
from suffice.layers.packed import Packed, PackedEmbedding
from suffice.models.packed import replace_module
from suffice.native.matrix import Codes

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


def told(model: object, device: str) -> str:
    """Return what multiplies by packed matrices, where it is torchao or might be; else "".

    Args:
        model: a module; what is none has no packed maps.
        device: where it lies.

    Example:
        >>> told(nn.Linear(2, 2), "cuda")
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
