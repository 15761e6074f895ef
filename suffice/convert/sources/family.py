"""What reading an architecture of transformers needs to know, and the names of a block's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from suffice.convert.sources.given import Given
from suffice.convert.sources.parts import Part


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture.

    Args:
        model_type: its name in a config.json.
        architecture: the class whose weights are read.
        build: makes our model, on "meta", of a configuration.
        parts: names every tensor of such a model of a configuration.
        prefix: which names have where the head is saved with them, and lack where it is not.
        derived: ends of names of tensors that follow from the sizes and are not read.
    """

    model_type: str
    architecture: str
    build: Callable[[Given], nn.Module]
    parts: Callable[[nn.Module, Given], list[Part]]
    prefix: str
    derived: tuple[str, ...] = ()


def linear(
    theirs: str, ours: str | tuple[str, ...], *, bias: bool | None = True, transposed: bool = False
) -> list[Part]:
    """Return the parts of a map.

    Args:
        theirs: name of its module.
        ours: names of ours, one after the other in theirs.
        bias: whether theirs and ours have one; False = ours has one and theirs does not; None =
            neither has.
        transposed: whether theirs stores inputs first.
    """
    names = (ours,) if isinstance(ours, str) else ours
    weights, biases = (tuple(f"{name}.{kind}" for name in names) for kind in ("weight", "bias"))
    parts = [Part(theirs=f"{theirs}.weight", ours=weights, transposed=transposed)]
    if bias is not None:
        parts.append(Part(theirs=f"{theirs}.bias" if bias else "", ours=biases))
    return parts


def norm(theirs: str, ours: str, *, bias: bool) -> list[Part]:
    """Return the parts of a norm."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Part(theirs=f"{theirs}.{kind}", ours=(f"{ours}.{kind}",)) for kind in kinds]
