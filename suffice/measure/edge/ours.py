"""A model of ours as `generate` runs it."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from suffice.generate import Generated, generate
from suffice.measure.edge.run import Run, Side, run_of
from suffice.memory import Dynamic, Memory
from suffice.models import LM

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
