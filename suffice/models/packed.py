"""Models some of whose matrices are packed: what is packed how, and modules for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.layers.scheme import Scheme
from suffice.ops.linear import Linear


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
