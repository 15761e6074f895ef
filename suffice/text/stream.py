"""Text that is decoded token by token."""

from __future__ import annotations

from collections.abc import Callable

from suffice.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for bytes of half a character
LONGEST = 4  # bytes of a character


class TextStream:
    """Writes text token by token, as soon as its characters are complete.

    A token may be part of a character, and how a token is spelled may depend on the one before, so
    decoding starts a few tokens earlier and text that was written already is left out.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], write: Callable[[str], object]
    ) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.pending = prompt[-LONGEST:]
        self.written = tokenizer.decode(self.pending)

    def add(self, token: int) -> None:
        """Write the characters that this token completes."""
        self.pending.append(token)
        text = self.tokenizer.decode(self.pending)
        if not text.endswith(REPLACEMENT) or len(text) - len(self.written) > LONGEST:
            self._write_rest_of(text)
            self.pending = self.pending[-LONGEST:]
            self.written = self.tokenizer.decode(self.pending)

    def close(self) -> None:
        """Write what was never completed."""
        self._write_rest_of(self.tokenizer.decode(self.pending))

    def _write_rest_of(self, text: str) -> None:
        self.write(text[len(self.written) :])
        self.written = text
