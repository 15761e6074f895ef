"""How much text a file of tokens stands for, so that losses can be told for each character."""

from __future__ import annotations

import math
from dataclasses import dataclass

from suffice.text import TokenFile, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The size of a text in three units.

    Args:
        tokens: those between documents included.
        characters: code points.
        bytes: of UTF-8.
    """

    tokens: int
    characters: int
    bytes: int

    def bits(self, loss: float) -> dict[str, float]:
        """Return a mean loss of tokens, in nats, as bits for each character and each byte.

        Example:
            >>> Amount(tokens=2, characters=4, bytes=8).bits(math.log(2))
            {'bits_per_character': 0.5, 'bits_per_byte': 0.25}
        """
        bits = loss / math.log(2) * self.tokens
        return {
            "bits_per_character": bits / self.characters,
            "bits_per_byte": bits / self.bytes,
        }


def amount(file: TokenFile, tokenizer: Tokenizer) -> Amount:
    """Count the text of a file of tokens; one document is decoded at a time.

    Raises:
        ConfigError: if the file's ids are not the tokenizer's.
    """
    characters = size = 0
    around = {tokenizer.begin, tokenizer.end}
    for number in range(file.header.documents):
        ids = [one for one in file.document(number).tolist() if one not in around]
        text = tokenizer.decode(ids)
        characters += len(text)
        size += len(text.encode())
    return Amount(tokens=len(file), characters=characters, bytes=size)
