"""Every query sees the last keys of each stretch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Fixed(Pattern):
    """Every query sees the last `tail` keys of each stretch: k mod stride >= stride - tail.

    Those keys gather what their stretch has to say, through `Block(stride)` beside this pattern,
    and hand it to everyone. With `& Causal()` the queries before the first tail see no key at all
    unless another pattern stands beside it.

    Args:
        stride: length of a stretch, positions, at least 1.
        tail: keys of each, 1 to stride.

    Raises:
        ConfigError: for a stride below 1, or a tail that is not 1 to stride.

    Cost: about T S tail / stride visible pairs.
    Example:
        >>> Fixed(3).mask(1, 7).int().tolist()
        [[0, 0, 1, 0, 0, 1, 0]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, A^(2) of fixed attention (l = stride,
        c = tail). The paper is causal; without `& Causal()` ours sees both ways. All heads share
        one tail; the paper's may have different parts of it.
    """

    stride: int
    tail: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1 or not 1 <= self.tail <= self.stride:
            raise ConfigError(
                f"Fixed(stride={self.stride}, tail={self.tail}): a stretch has at least 1 position "
                "and its tail 1 to all of them; give 1 <= tail <= stride."
            )

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key is in the tail of its stretch."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape)
        return (k_positions % self.stride >= self.stride - self.tail).expand(shape)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: where in a stretch their keys begin decides."""
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        more = k_last - k_first
        rest = self.stride - self.tail
        into_tail = (k_first - rest) % self.stride
        return judged(
            none=k_first % self.stride + more < rest,
            every=(into_tail + more < self.tail) | (rest == 0),
        ).expand(shape)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return every second key."""
        return (cls(2),)
