"""One text written behind a prompt, and how long each token took.

Letters: n new tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from suffice.errors import ConfigError, StateError
from suffice.generate import Generated, generate
from suffice.memory import Dynamic, Memory
from suffice.models import LM


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


EVERYTHING = Dynamic()


class Ours(Side):
    """A model with a memory.

    Args:
        lm: the model.
        memory: what is kept of the text.
        name: of it.
    """

    def __init__(self, lm: LM, memory: Memory = EVERYTHING, name: str = "suffice") -> None:
        self.lm, self.memory, self.name = lm, memory, name

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens behind a prompt."""
        ticks, tokens = [perf_counter()], []

        def tell(token: list[int | None]) -> None:
            ticks.append(perf_counter())
            tokens.append(token[0])

        generate(self.lm, prompt[None], max_new_tokens=new, memory=self.memory, on_token=tell)
        return run_of(tokens, len(prompt), ticks)

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits as the model gives them with a state."""
        state = self.lm.state(self.memory)
        with torch.inference_mode():
            found = [self.lm(prompt[None], state=state)[0, -1]]
            found += [self.lm(token.view(1, 1), state=state)[0, -1] for token in following]
        return torch.stack(found)

    def kept(self, prompt: Tensor, new: int) -> Generated:
        """Return what is written behind a prompt, with the state that is left."""
        options = {"max_new_tokens": new, "memory": self.memory, "keep_state": True}
        return generate(self.lm, prompt[None], **options)


WARM, CHECKED, FOLLOWING = 8, 24, 8
# by bits of the weights, of the logits' length: a state in 16 bits, and rounding that adds up
TOLERANCES = {32: 1e-2, 16: 2e-2, 8: 0.2, 4: 0.8}


def apart(ours: Side, theirs: Side, ids: Tensor) -> float:
    """Return how far logits of two sides are from each other, over the length of ours.

    Args:
        ours: one side.
        theirs: the other one.
        ids: a prompt [T]; some of it is read at once, some one by one.
    """
    first = ids[: min(CHECKED, len(ids) - 1)]
    rest = ids[len(first) :][:FOLLOWING]
    want, got = (side.logits(first, rest).double() for side in (ours, theirs))
    return ((got - want).norm() / want.norm()).item()


def check_alike(ours: Side, theirs: Side, ids: Tensor, bits: int = 32) -> None:
    """Refuse to time a side that computes something else.

    Args:
        ours: a model in 32 bits.
        theirs: the other side.
        ids: a prompt [T].
        bits: of the other side's weights.

    Raises:
        StateError: if its logits are not ours.
    """
    tolerance = TOLERANCES[bits]
    with torch.inference_mode():
        error = apart(ours, theirs, ids)
    if not error <= tolerance:
        raise StateError(
            f"{theirs.name}: logits of the same weights are {error:.1e} of their length apart "
            f"from those of {ours.name}, more than {tolerance:.0e}; nothing is timed. Compare the "
            "versions of both."
        )


def session(sides: list[Side], ids: Tensor, new: int, rounds: int) -> dict[str, list[Run]]:
    """Let each side write once a round, in an order that turns.

    Args:
        sides: of different names.
        ids: the prompt [T].
        new: tokens each writes, at least 2.
        rounds: texts of each.
    """
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for side in sides:
        side.write(ids, min(new, WARM))
    for number in range(rounds):
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            runs[side.name].append(side.write(ids, new))
    return runs


def gain(ours: list[Run], theirs: list[Run], rate: str) -> float:
    """Return our rate over theirs, the median over the rounds.

    Args:
        ours: our runs.
        theirs: as many.
        rate: "prefill" or "decode".
    """
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(getattr(a, rate) / getattr(b, rate) for a, b in pairs)
