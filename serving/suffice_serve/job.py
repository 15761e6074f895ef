"""Requests to the engine, and the events it emits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from suffice.errors import ConfigError, SufficeError
from suffice.generate.sampling import Greedy, Sampling


@dataclass(frozen=True, kw_only=True)
class Job:
    """A text to be written.

    Raises:
        ConfigError: for an empty prompt.
    """

    prompt: tuple[int, ...]  # ids, at least one
    max_tokens: int  # new tokens, >= 0
    sampling: Sampling = Greedy()  # rule that chooses a token
    row: int = 0  # number of the row of `suffice.generate` whose random numbers are drawn
    # number subtracted from the logits of tokens that were written already
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0  # number subtracted once for each time that a token was written
    # numbers added to the logits of some ids
    bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[int, ...] = ()  # ids that end the text and are not part of it
    # number of likeliest tokens that are scored with each token; None disables scores
    logprobs: int | None = None
    echo: bool = False  # whether the tokens of the prompt get scores, too

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ConfigError("the prompt has no token; give at least one to continue.")

    @property
    def positions(self) -> int:
        """Tokens that the model reads: the last new one is not."""
        return len(self.prompt) + max(self.max_tokens - 1, 0)


class TokenScore(NamedTuple):
    """A token with its log-probability and the likeliest ones in its place.

    Log-probabilities are those of the model, before temperature, penalties and filters.

    Args:
        token: id of the token.
        logprob: log-probability of the token; None where scores were not asked for.
        top: ids and log-probabilities, the likeliest first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Listener(Protocol):
    """Receives the tokens of a text, in the engine's thread; must not take long."""

    def prompt(self, scores: Sequence[TokenScore]) -> None:
        """Receive the scores of the prompt's next tokens; its first one has none."""
        ...

    def token(self, score: TokenScore) -> bool:
        """Receive a new token; return whether the text goes on."""
        ...

    def finish(self, reason: str) -> None:
        """Learn that the text is complete: "stop" or "length"."""
        ...

    def fail(self, reason: str) -> None:
        """Learn that the text will not be completed."""
        ...


class TooMany(SufficeError):
    """The queue is full, or the engine is closing."""
