"""Generates one continuation and times every token.

Letters: T tokens, n new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate import Generated, Rates, generate
from suffice.generate.decoding import choose_backend
from suffice.generate.rates import rates_of
from suffice.memory import Dynamic, Memory
from suffice.models import LM


@dataclass(frozen=True, kw_only=True)
class Run(Rates):
    """The times of one text, with its tokens.

    Args:
        tokens: tokens that were written.
    """

    tokens: tuple[int, ...]


def run_of(tokens: Sequence[int], prompt: int, ticks: Sequence[float]) -> Run:
    """Return the run of a start time and the time at which each token was there.

    Example:
        >>> run_of([5, 6, 5], prompt=4, ticks=[0.0, 2.0, 2.5, 3.0]).decode
        2.0
    """
    if len(tokens) < 2:
        raise ConfigError(f"{len(tokens)} new tokens have no rate; write at least 2.")
    return Run(tokens=tuple(tokens), **vars(rates_of(prompt, ticks)))


class Writer:
    """A model that writes greedily and measures how long each token takes.

    Args:
        lm: the model.
        memory: KV-cache policy; None keeps every position.
        name: name in tables.
        clock: function that returns seconds; None: those that pass.
    """

    def __init__(
        self,
        lm: LM,
        memory: Memory | None = None,
        name: str = "suffice",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.lm, self.memory, self.name = lm, memory or Dynamic(), name
        self.decoder, _ = choose_backend(lm, self.memory, "auto")  # rates are without its set-up
        self.clock = clock or perf_counter

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the n likeliest tokens after a prompt [T] or prompts [B, T], n at least 2.

        The run has the tokens of the first row.
        """
        rows = torch.atleast_2d(prompt)
        ticks, tokens = [self.clock()], []

        def on_token(token: list[int | None]) -> None:
            ticks.append(self.clock())
            tokens.append(token[0])

        generate(self.decoder, rows, max_new_tokens=new, memory=self.memory, on_token=on_token)
        return run_of(tokens, rows.shape[1], ticks)

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits [n + 1, V] after a prompt [T] and after each following token [n]."""
        state = self.lm.state(self.memory)
        with torch.inference_mode():
            logits = [self.lm(prompt[None], state=state)[0, -1]]
            logits += [self.lm(token.view(1, 1), state=state)[0, -1] for token in following]
        return torch.stack(logits)

    def generated(self, prompt: Tensor, new: int) -> Generated:
        """Return the text that is written after a prompt [T], with its state."""
        options = {"max_new_tokens": new, "memory": self.memory, "keep_state": True}
        return generate(self.lm, prompt[None], **options)
