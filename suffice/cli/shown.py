"""The text of tokens as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffice.text import Tokenizer

HALF = "\N{REPLACEMENT CHARACTER}"  # a decoder's word for bytes that are no letter yet
LONGEST = 4  # bytes of a letter


class Shown:
    """Writes text as soon as its letters are whole.

    A token may be part of a letter, and how a token is spelled may depend on the one before it, so
    text is decoded from a little earlier on and what was written already is left out.

    Args:
        tokenizer: of the tokens.
        before: tokens the text goes on from; they are not written.
        write: takes pieces of text.
    """

    def __init__(self, tokenizer: Tokenizer, before: list[int], write: Callable[[str], object]):
        self.tokenizer, self.write = tokenizer, write
        self.held = before[-LONGEST:]
        self.told = tokenizer.decode(self.held)

    def add(self, token: int) -> None:
        """Write what this token makes whole."""
        self.held.append(token)
        text = self.tokenizer.decode(self.held)
        if not text.endswith(HALF) or len(text) - len(self.told) > LONGEST:
            self._go_on(text)
            self.held = self.held[-LONGEST:]
            self.told = self.tokenizer.decode(self.held)

    def close(self) -> None:
        """Write what never became whole."""
        self._go_on(self.tokenizer.decode(self.held))

    def _go_on(self, text: str) -> None:
        self.write(text[len(self.told) :])
        self.told = text
