"""Each head has a pattern of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.combined import farthest
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class PerHead(Pattern):
    """Head h follows patterns[h].

    It makes a layer of specialists: some heads near, some far. `&` and `|` reach into every head.

    Args:
        patterns: one for each query head, in order.

    Raises:
        ConfigError: if something is no pattern, or is itself made for several heads.

    Cost: the sum over heads of what each pattern costs.
    Example:
        >>> from suffice.patterns import Causal, Full
        >>> PerHead((Full(), Causal())).mask(2, 2).int().tolist()
        [[[1, 1], [1, 1]], [[1, 0], [1, 1]]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2 (factorised heads, each with a
        pattern). No difference.
    """

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.patterns, tuple) and self.patterns
        if not several or not all(isinstance(part, Pattern) for part in self.patterns):
            raise ConfigError(
                f"PerHead takes a tuple of patterns, one for each head, got {self.patterns!r}."
            )
        super().__post_init__()
        nested = [part for part in self.patterns if part.heads is not None]
        if nested:
            raise ConfigError(
                f"{nested[0]!r} is made for {nested[0].heads} heads; PerHead takes the pattern of "
                "one head in each place."
            )

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """True if every head is causal."""
        return all(part.causal for part in self.patterns)

    @property
    def dense(self) -> bool:  # type: ignore[override]
        """True if every head is computed whole."""
        return all(part.dense for part in self.patterns)

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """True if every head means something between two sequences."""
        return all(part.crosses for part in self.patterns)

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """The smallest one of the heads."""
        return min((m for part in self.patterns if (m := part.max_length)), default=None)

    @property
    def relative(self) -> bool:  # type: ignore[override]
        """True if all of them are."""
        return all(part.relative for part in self.patterns)

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        """The longest reach of a head."""
        return farthest(self.patterns)

    @property
    def heads(self) -> int:  # type: ignore[override]
        """As many as there are patterns."""
        return len(self.patterns)

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the patterns."""
        return self.patterns if num_heads == self.heads else super().of_heads(num_heads)

    def every(self, step: int, first: int) -> Pattern:
        """Return the same of each head."""
        return PerHead(tuple(part.every(step, first) for part in self.patterns))

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what each head allows: [..., H, T, S]."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape, (1, 1, 1))
        parts = [part.allowed(q_positions, k_positions).expand(shape) for part in self.patterns]
        return torch.cat(parts, dim=-3)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what all heads together know of rectangles."""
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        corners = (q_first, q_last, k_first, k_last)
        known = torch.stack([part.bounds(*corners).expand(shape) for part in self.patterns])
        every, none = (known == 2).all(dim=0), (known == 0).all(dim=0)  # noqa: PLR2004
        return judged(none=none, every=every)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return two heads that look near and two that look far."""
        near, far = cls.table["Window"](2), cls.table["Strided"](2)
        return (cls((near, near, far, far)),)
