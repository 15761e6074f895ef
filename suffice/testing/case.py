"""A spec, the input to try it on, and the layers and ops that take it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from suffice.layers import Attention
from suffice.ops import OPS, Problem
from suffice.spec import AttentionSpec
from suffice.testing.inputs import drawn, normal

BATCH = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A spec and the length of the input to try it on.

    Args:
        spec: the layer; its dropout is set to 0, which is what makes it a function.
        length: positions.
    """

    spec: AttentionSpec
    length: int

    @cached_property
    def x(self) -> Tensor:
        """Input [B, T, d_model] for self-attention."""
        return normal(BATCH, self.length, self.spec.d_model, seed=1)

    @property
    def keys(self) -> int:
        """How many keys the kernel reads, R."""
        return self.spec.mixing.reads(self.length)

    @property
    def takes_documents(self) -> bool:
        """Whether rows may hold several documents."""
        return self.spec.mixing.keeps_keys and not self.spec.past.reads

    def layer(self, impl: str = "auto") -> Attention:
        """Return the layer; the same parameters for every impl."""
        spec = replace(self.spec, dropout=0.0)
        return drawn(Attention(spec, impl=impl, dtype=torch.float64), seed=2)

    def ops(self, *, plain: bool) -> list[str]:
        """Return the names of the ops that accept the case."""
        problem = Problem.of(self.spec, self.length, self.keys, plain=plain, dtype=torch.float64)
        return [name for name, op in OPS.items() if not op.refuses(problem)]

    def visible(self) -> Tensor:
        """Return which keys each head of the kernel may see: bool [H or 1, T, R]."""
        seen = self.spec.pattern.mask(self.length, self.keys)
        return seen if seen.dim() == 3 else seen[None]  # noqa: PLR2004


def gradients(layer: Attention, x: Tensor, **where: Tensor) -> list[Tensor]:
    """Return the output and the gradients of its squares with respect to x and the parameters."""
    x = x.clone().requires_grad_()
    out = layer(x, **where)
    sources = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out.square().sum(), sources)]
