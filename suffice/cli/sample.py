"""A little text from a model, to see what it has learned."""

from __future__ import annotations

import math

from suffice.errors import DataError
from suffice.generate import Sample, generate
from suffice.models import LM
from suffice.text import Tokenizer

TEMPERATURE = 0.8


def sample(lm: LM, tokenizer: Tokenizer, *, characters: int, each: float, seed: int = 0) -> str:
    """Return text that a model draws, the same for the same seed, behind the begin of a document.

    Where no token begins or ends documents, it goes on from a line's end. A text longer than the
    model's rows is written in pieces, each behind the second half of what a row holds.

    Args:
        lm: the model.
        tokenizer: of its tokens.
        characters: about so many.
        each: characters of a token, about.
        seed: of the draws.

    Raises:
        ConfigError: if the model cannot stream.
    """
    length = lm.config.length
    first = _start(tokenizer)
    ids, wanted = first, len(first) + math.ceil(characters / each)
    while len(ids) < wanted:
        before = ids[-max(length // 2, 1) :]
        room = min(length + 1 - len(before), wanted - len(ids))
        draws = Sample(temperature=TEMPERATURE, seed=seed + len(ids))
        found = generate(lm, [before], max_new_tokens=room, sampling=draws)
        ids = ids + found.row(0)[len(before) :]
    hidden, size = {tokenizer.begin, tokenizer.end}, tokenizer.vocabulary_size
    # a model may have more rows than its tokenizer has tokens, for speed
    told = [one for one in ids[len(first) :] if one not in hidden and one < size]
    return tokenizer.decode(told)


def _start(tokenizer: Tokenizer) -> list[int]:
    for one in (tokenizer.begin, tokenizer.end):
        if one is not None:
            return [one]
    try:
        return tokenizer.encode("\n")
    except DataError:
        return [0]  # an alphabet of one line; its first character is as good as another
