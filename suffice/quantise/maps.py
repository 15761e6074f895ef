"""Which maps of a model can be packed, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from suffice.errors import ConfigError
from suffice.layers.packed import Packed
from suffice.layers.scheme import DEFAULT, Scheme
from suffice.ops.linear import Linear

MATRIX = 2  # dimensions


def maps_of(
    model: nn.Module, bits: int, group: int | None, skip: Sequence[str]
) -> tuple[dict[str, Scheme], dict[str, str]]:
    """Return the scheme of each map that can be packed, and why each other one cannot.

    Looked at are all modules with a matrix of their own.

    Args:
        model: not packed yet.
        bits: 16, 8 or 4.
        group: inputs with one scale; None = chosen for each map.
        skip: names of modules to leave alone; * stands for any part of a name.

    Raises:
        ConfigError: if bits or group are not legal, the model is packed already, an entry of skip
            fits no map, or none is left.
    """
    Scheme(bits=bits, group=DEFAULT.get(bits) if group is None else group)  # told once, not by map
    found = dict(_with_matrix(model))
    unused = [s for s in skip if not any(fnmatchcase(name, s) for name in found)]
    if unused:
        raise ConfigError(f"skip={unused[0]!r} fits none of {', '.join(found)}.")
    schemes: dict[str, Scheme] = {}
    skipped: dict[str, str] = {}
    for name, module in found.items():
        reason = "as asked" if any(fnmatchcase(name, s) for s in skip) else _why_not(name, module)
        try:
            if not reason:
                schemes[name] = Scheme.of(module.weight.shape[1], bits, group)
        except ConfigError as error:
            reason = str(error).rstrip(".")
        if reason:
            skipped[name] = reason
    if not schemes:
        firsts: dict[str, str] = {}  # each reason is told once, of the first it holds for
        for name, reason in skipped.items():
            firsts.setdefault(reason, name)
        reasons = "; ".join(f"{name}: {reason}" for reason, name in firsts.items())
        raise ConfigError(f"no map of this model can be packed ({reasons or 'it has none'}).")
    return schemes, skipped


def _with_matrix(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            raise ConfigError(f"the model is packed already ({name}); give the one it came from.")
        if any(p.dim() >= MATRIX for p in module.parameters(recurse=False)):
            yield name, module


def _why_not(name: str, module: nn.Module) -> str:
    if name.rpartition(".")[2] == "positions":
        return "positions are added to tokens; a few rows"
    if type(module) not in (Linear, nn.Linear, nn.Embedding):
        return f"{type(module).__name__} is no linear map of features"
    return ""
