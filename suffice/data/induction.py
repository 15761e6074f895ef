"""Induction: a sequence, then a stretch of it again; asked is what followed last time."""

from __future__ import annotations

import numpy as np
import torch

from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.data.drawn import TRAIN, check_counts, drawn, subsets
from suffice.errors import ConfigError


def induction(
    *, symbols: int = 16, length: int = 16, repeated: int = 8, rows: int = TRAIN, seed: int = 0
) -> Dataset:
    """Draw rows of `length` different symbols and then a stretch of them from anywhere, again.

    At each token of the stretch, asked is the symbol that followed it the first time. The stretch
    starts anywhere, so no fixed distance answers: a model has to find the token and look behind
    it, as induction heads do. The chance level is that of a guess among the symbols of the row
    that the stretch has not shown yet. 8,192 training rows, 512 for validation, 1,024 for the test.

    Args:
        symbols: different symbols there are, >= length.
        length: of the sequence, tokens.
        repeated: tokens of the stretch, each of which asks; below length. A row has
            length + repeated tokens.
        rows: of the training part.
        seed: of the rows; no training seed changes them.

    Shapes:
        inputs, labels: int64 [N, length + repeated]

    Raises:
        ConfigError: if a size is not legal, or there are too few different rows.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv:2209.11895.
        Differs: the paper repeats whole sequences that may hold a token twice; here a token has
        one successor, so every answer is determined.
    """
    check_counts("induction", symbols=symbols, length=length, repeated=repeated, rows=rows)
    check_counts("induction", least=0, seed=seed)
    if not repeated < length <= symbols:
        raise ConfigError(
            f"induction: {repeated} tokens again of {length} out of {symbols} symbols; a sequence "
            "holds no symbol twice and goes on behind the stretch, so give repeated < length <= "
            "symbols."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> Split:  # noqa: ARG001
        shown = subsets(random, count, of=symbols, size=length)
        start = random.randint(0, length - repeated, size=(count, 1))
        at = start + np.arange(repeated)
        again = np.take_along_axis(shown, at, axis=1)
        answers = np.take_along_axis(shown, at + 1, axis=1)
        inputs = np.concatenate([shown, again], axis=1)
        labels = np.concatenate([np.full_like(shown, NOT_ASKED), answers], axis=1)
        return Split(torch.from_numpy(inputs).long(), torch.from_numpy(labels).long())

    return drawn(
        "induction",
        draw,
        rows=rows,
        seed=seed,
        num_classes=symbols,
        title=f"Induction, {repeated} of {length} symbols again",
        source="drawn at random, after Olsson et al. 2022 (arXiv:2209.11895)",
        chance=sum(1 / (length - 1 - seen) for seen in range(repeated)) / repeated,
    )
