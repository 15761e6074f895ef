"""One text written behind a prompt, and how long each token took.

Letters: n new tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from suffice.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Run:
    """Times of one text.

    Args:
        tokens: that were written.
        prompt: tokens that were read first.
        prompt_seconds: until the first token was there.
        token_seconds: of each token after it.
    """

    tokens: tuple[int, ...]
    prompt: int
    prompt_seconds: float
    token_seconds: tuple[float, ...]

    @property
    def prefill(self) -> float:
        """Tokens of the prompt a second."""
        return self.prompt / self.prompt_seconds

    @property
    def decode(self) -> float:
        """New tokens a second, the first one left out."""
        return len(self.token_seconds) / sum(self.token_seconds)


def run_of(tokens: Sequence[int], prompt: int, ticks: Sequence[float]) -> Run:
    """Return the run of a start and of the times at which each token was there.

    Raises:
        ConfigError: with less than two tokens, which tell no rate.

    Example:
        >>> run_of([5, 6, 5], prompt=4, ticks=[0.0, 2.0, 2.5, 3.0]).decode
        2.0
    """
    if len(tokens) < 2:  # noqa: PLR2004
        raise ConfigError(f"{len(tokens)} new tokens tell no rate; write at least 2.")
    return Run(
        tokens=tuple(tokens),
        prompt=prompt,
        prompt_seconds=ticks[1] - ticks[0],
        token_seconds=tuple(b - a for a, b in pairwise(ticks[1:])),
    )


class Side(ABC):
    """A model somebody runs: ours or a peer's."""

    name: str

    @abstractmethod
    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens behind a prompt.

        Args:
            prompt: ids [T].
            new: n, at least 2.
        """

    @abstractmethod
    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits [n + 1, V] behind a prompt read at once and behind each token after it.

        Args:
            prompt: ids [T].
            following: ids [n], read one by one.
        """
