"""States of earlier prompts, from which a longer prompt with the same beginning goes on."""

from __future__ import annotations

from collections import OrderedDict

from suffice.models.state import ModelState


class Prefixes:
    """Forks of states after whole chunks of prompts, the latest used kept within so many bytes.

    A prompt is read in the same chunks with and without them, so its text does not change by a bit.

    Args:
        limit: bytes of all states; 0 keeps none.
        chunk: tokens of a chunk.
    """

    def __init__(self, limit: int, chunk: int) -> None:
        self.limit, self.chunk = limit, chunk
        self.states: OrderedDict[tuple[int, ...], ModelState] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self.states.values())

    def find(self, prompt: tuple[int, ...]) -> ModelState | None:
        """Return the state after the longest beginning of a prompt; fork it before use."""
        for end in range((len(prompt) - 1) // self.chunk * self.chunk, 0, -self.chunk):
            if prompt[:end] in self.states:
                self.states.move_to_end(prompt[:end])
                return self.states[prompt[:end]]
        return None

    def keep(self, beginning: tuple[int, ...], state: ModelState) -> None:
        """Keep a fork of the state after the beginning of a prompt."""
        if beginning in self.states or state.nbytes > self.limit:
            return
        self.states[beginning] = state.fork()
        while self.nbytes > self.limit:
            self.states.popitem(last=False)
