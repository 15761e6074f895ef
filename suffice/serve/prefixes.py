"""States of earlier prompts, from which a longer prompt with the same beginning goes on."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import sha256

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
        self.states: OrderedDict[bytes, ModelState] = OrderedDict()  # by digest of the beginning

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in tuple(self.states.values()))

    def _digests(self, prompt: Sequence[int], length: int) -> Iterator[bytes]:
        """Yield the digest of each beginning of whole chunks; all cost one pass over the prompt."""
        running = sha256()
        for end in range(self.chunk, length + 1, self.chunk):
            running.update(array("q", prompt[end - self.chunk : end]).tobytes())
            yield running.digest()

    def find(self, prompt: Sequence[int]) -> ModelState | None:
        """Return the state after the longest beginning that leaves a token; fork it before use."""
        kept = None
        for digest in self._digests(prompt, len(prompt) - 1) if self.states else ():
            kept = digest if digest in self.states else kept
        if kept is None:
            return None
        self.states.move_to_end(kept)
        return self.states[kept]

    def keep(self, beginning: Sequence[int], state: ModelState) -> None:
        """Keep a fork of the state after the beginning of a prompt, of whole chunks."""
        if state.nbytes > self.limit:
            return
        *_, digest = self._digests(beginning, len(beginning))
        if digest not in self.states:
            self.states[digest] = state.fork()
        while self.nbytes > self.limit:
            self.states.popitem(last=False)
