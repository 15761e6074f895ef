"""Inputs for tests, all drawn from seeds: odd sizes, awkward lengths, every side of padding.

A layer as built has biases of zero and may have symmetric weights; a test on such a layer can
pass with broken code. `drawn` fills every parameter with normal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, check_known
from suffice.kernels import Recurrent
from suffice.layers import Attention
from suffice.memory.past import Past
from suffice.ops import OPS, AttentionCall
from suffice.patterns import Block, Causal, Pattern
from suffice.spec import AXES, AttentionSpec
from suffice.utils.records import Axis


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers; the same for every dtype, up to its rounding.

    Example:
        >>> torch.equal(normal(2, 3, seed=1), normal(2, 3, seed=1))
        True
    """
    return torch.randn(shape, generator=_generator(seed), dtype=torch.float64).to(dtype)


def bits(*shape: int, seed: int, share: float = 0.6) -> Tensor:
    """Return random booleans of which about `share` are True."""
    return torch.rand(shape, generator=_generator(seed)) < share


def drawn(module: nn.Module, *, seed: int) -> nn.Module:
    """Fill every parameter in place with normal numbers and return the module.

    Matrices get 1 / sqrt(columns), so that activations stay near 1; vectors get 1/2.
    """
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            size = 0.5 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5  # noqa: PLR2004
            numbers = normal(*parameter.shape, seed=1000 * seed + index)
            parameter.copy_(size * numbers)
    return module


def padded(batch: int, length: int, side: str, *, seed: int = 0) -> Tensor:
    """Return valid [B, length], True = real; row b holds fewer real tokens the larger b is.

    Example:
        >>> padded(3, 4, "left").int().tolist()
        [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    """
    check_known("side", side, SIDES)
    if length < 1:
        raise ConfigError(f"length={length}: a row needs at least one position.")
    valid = torch.zeros(batch, length, dtype=torch.bool)
    for row in range(batch):
        real = length - row % length
        if side == "left":
            valid[row, length - real :] = True
        elif side == "right":
            valid[row, :real] = True
        else:
            valid[row, torch.randperm(length, generator=_generator(seed + row))[:real]] = True
    return valid


SIDES = ("left", "right", "inside")


def documents(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Return segments [B, length]: each row cut into runs of random length, numbered from 0.

    Example:
        >>> documents(1, 6, seed=3).shape
        torch.Size([1, 6])
    """
    starts = torch.rand(batch, length, generator=_generator(seed)) < 0.4  # noqa: PLR2004
    starts[:, 0] = False
    return starts.long().cumsum(dim=1)


def spec_around(*values: Axis, **sizes: int | bool | float) -> AttentionSpec:
    """Return a small spec with these axis values on their axes.

    Args:
        values: axis values, at most one of each family.
        **sizes: fields of AttentionSpec; d_model is 8 unless given, num_heads 2 or what the
            pattern is made for; a past that is read in segments gets its pattern, a value that
            sums tokens Causal().

    Example:
        >>> from suffice.patterns import Causal
        >>> spec_around(Causal()).pattern
        Causal()
    """
    axes: dict[str, Axis] = {}
    for value in values:
        name = next((name for name, family in AXES.items() if isinstance(value, family)), None)
        if name is None:
            raise ConfigError(f"{value!r} is not an axis value; legal axes: {', '.join(AXES)}.")
        if name in axes:
            raise ConfigError(f"{axes[name]!r} and {value!r} are both a {name}; give one.")
        axes[name] = value
    pattern = axes.get("pattern")
    heads = pattern.heads or 2 if isinstance(pattern, Pattern) else 2
    past = axes.get("past")
    if isinstance(past, Past) and past.segment is not None:
        axes.setdefault("pattern", Block(past.segment) & Causal())
    encoder = axes.get("encoder")
    if isinstance(axes.get("kernel"), Recurrent) or (encoder and encoder.sums_tokens):
        axes.setdefault("pattern", Causal())
    return AttentionSpec(**{"d_model": 8, "num_heads": heads, **sizes, **axes})


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BATCH = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A spec and the length of the input to try it on.

    Args:
        spec: the layer; its dropout is set to 0, which is what makes it a function.
    """

    spec: AttentionSpec
    length: int

    @cached_property
    def x(self) -> Tensor:
        """Input [B, T, d_model] for self-attention."""
        return normal(BATCH, self.length, self.spec.d_model, seed=1)

    @property
    def keys(self) -> int:
        """Number of keys that the kernel reads, R."""
        return self.spec.mixing.reads(self.length)

    @property
    def takes_documents(self) -> bool:
        """Whether rows may hold several documents."""
        return self.spec.keeps_documents

    def data(self) -> list[dict[str, Tensor]]:
        """Return what restricts rows: nothing, padding, and documents if a row may hold them."""
        restrictions = [{}, {"valid": padded(BATCH, self.length, "inside")}]
        if self.takes_documents:
            restrictions.append({"segments": documents(BATCH, self.length)})
        return restrictions

    def layer(self, impl: str = "auto") -> Attention:
        """Return the layer; the same parameters for every impl."""
        spec = replace(self.spec, dropout=0.0)
        return drawn(Attention(spec, impl=impl, dtype=torch.float64), seed=2)

    def ops(self, *, plain: bool) -> list[str]:
        """Return the names of the ops that accept the case."""
        problem = AttentionCall.of(
            self.spec, self.length, self.keys, plain=plain, dtype=torch.float64
        )
        if self.spec.lane == "recurrence":
            return ["recurrence"]
        return [name for name, op in OPS.items() if not op.refuses(problem)]

    def visible(self) -> Tensor:
        """Return which keys each head of the kernel may see: bool [H or 1, T, R]."""
        mask = self.spec.pattern.mask(self.length, self.keys)
        return mask if mask.dim() == 3 else mask[None]  # noqa: PLR2004


def gradients(layer: nn.Module, x: Tensor, **where: Tensor) -> list[Tensor]:
    """Return the output and the gradients of its squares with respect to x and the parameters."""
    x = x.clone().requires_grad_()
    out = layer(x, **where)
    sources = {"x": x, **dict(layer.named_parameters())}
    found = torch.autograd.grad(out.square().sum(), [*sources.values()], allow_unused=True)
    unused = [name for name, one in zip(sources, found, strict=True) if one is None]
    if unused:
        names = ", ".join(name.removeprefix("layer.") for name in unused)
        raise AssertionError(f"the output does not use {names}.")
    return [out.detach(), *found]
