"""Prefill and decoding rates of one text, in tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from suffice.errors import ConfigError
from suffice.generate.decoding import OnToken


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The times of one text."""

    prompt: int  # tokens that were read first
    prompt_seconds: float  # seconds from the start to the first new token
    token_seconds: tuple[float, ...]  # seconds of each new token after the first

    @property
    def prefill(self) -> float:
        """Tokens of the prompt per second, the first new token included in the time."""
        return self.prompt / self.prompt_seconds

    @property
    def decode(self) -> float:
        """New tokens per second after the first, or raise ConfigError if there are none."""
        if not self.token_seconds:
            raise ConfigError("one new token has no rate; write at least 2.")
        return len(self.token_seconds) / sum(self.token_seconds)

    def __str__(self) -> str:
        decode = f"{self.decode:,.1f} tokens/s" if self.token_seconds else "one token, no rate"
        return f"prompt {self.prefill:,.1f} tokens/s, decode {decode}"


def rates_of(prompt: int, ticks: Sequence[float]) -> Rates:
    """Return the rates of a start time and the time at which each new token was there.

    Example:
        >>> rates_of(4, [0.0, 2.0, 2.5, 3.0]).decode
        2.0
    """
    return Rates(
        prompt=prompt,
        prompt_seconds=ticks[1] - ticks[0],
        token_seconds=tuple(later - earlier for earlier, later in pairwise(ticks[1:])),
    )


class Stopwatch:
    """An `on_token` of `generate` that measures its rates; what it calls itself does not count.

    Example:
        >>> ticks = iter([0.0, 2.0, 2.0, 2.5, 9.5, 10.0, 10.0])
        >>> watch = Stopwatch(print, clock=lambda: next(ticks))
        >>> for token in (7, 8, 9):
        ...     watch([token])
        [7]
        [8]
        [9]
        >>> watch.rates(prompt=4).token_seconds
        (0.5, 0.5)
    """

    def __init__(
        self, on_token: OnToken | None = None, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._on_token, self._clock = on_token, clock
        self._outside = 0.0
        self._ticks = [clock()]

    def __call__(self, tokens: list[int | None]) -> None:
        """Take note of the time, then pass the tokens on."""
        now = self._clock()
        self._ticks.append(now - self._outside)
        if self._on_token is not None:
            self._on_token(tokens)
        self._outside += self._clock() - now

    def rates(self, prompt: int) -> Rates:
        """Return the rates after a prompt of `prompt` tokens."""
        return rates_of(prompt, self._ticks)
