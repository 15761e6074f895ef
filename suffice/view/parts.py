"""A composed pattern taken apart: which part allows which pairs.

Letters: T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from suffice.patterns import And, Block, Or, Pattern, PerHead, Window
from suffice.view.expression import expression, flat


@dataclass(frozen=True)
class Part:
    """One part of a composed pattern, as the legend of a drawing names it.

    Args:
        kind: the class that colours it.
        name: what the legend says.
    """

    kind: str
    name: str

    def over_blocks(self, size: int) -> Part:
        """Return the same part of a pattern of blocks."""
        return Part(self.kind, f"{self.name} over blocks of {size}")


Layers = list[tuple[Part, Tensor]]


def layers(pattern: Pattern, q: Tensor, k: Tensor, head: int = 0) -> Layers:
    """Return the parts of a pattern and where each allows a pair, bool [T, S].

    The union of all is what the pattern allows. Of parts joined by `&` the most specific one is
    named: one that leaves whole regions out before one that does not, then the one with the
    fewest pairs here, then the first.

    Args:
        pattern: what to take apart.
        q: positions of the queries, [T, 1].
        k: positions of the keys, [1, S].
        head: of which head, from 0.

    Example:
        >>> from suffice.patterns import Causal, Window
        >>> at = torch.arange(4)
        >>> [part.kind for part, _ in layers(Window(2) & Causal(), at[:, None], at[None])]
        ['Window']
    """
    if isinstance(pattern, PerHead):
        return layers(pattern.patterns[head], q, k)
    if isinstance(pattern, Or):
        return [layer for part in flat(pattern) for layer in layers(part, q, k, head)]
    if isinstance(pattern, And):
        return _joined(flat(pattern), q, k, head)
    if isinstance(pattern, Block) and pattern.over != Window(1):
        inner = layers(pattern.over, q // pattern.size, k // pattern.size, head)
        return [(part.over_blocks(pattern.size), mask) for part, mask in inner]
    return [(Part(type(pattern).__name__, expression(pattern)), _allowed(pattern, q, k, head))]


def _joined(parts: list[Pattern], q: Tensor, k: Tensor, head: int) -> Layers:
    """Return the most specific part of `&`, cut down to what the others allow."""
    parts = [part.patterns[head] if isinstance(part, PerHead) else part for part in parts]
    masks = [_allowed(part, q, k, head) for part in parts]
    named = min(range(len(parts)), key=lambda i: (parts[i].dense, int(masks[i].sum())))
    others = [mask for i, mask in enumerate(masks) if i != named]
    inner = layers(parts[named], q, k, head)
    return [(part, reduce(and_, others, mask)) for part, mask in inner]


def _allowed(pattern: Pattern, q: Tensor, k: Tensor, head: int) -> Tensor:
    allowed = pattern.allowed(q, k)
    if allowed.dim() > q.dim():
        allowed = allowed[head]
    return allowed.expand(torch.broadcast_shapes(q.shape, k.shape))
