"""Copying: a stretch of symbols, a mark, and the stretch again, symbol by symbol.

Letters: N rows, T tokens, L symbols of a row's stretch.
"""

from __future__ import annotations

import numpy as np
import torch

from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.data.drawn import TRAIN, check_counts, drawn
from suffice.errors import ConfigError


def copy(
    *,
    symbols: int = 32,
    shortest: int = 8,
    length: int = 12,
    room: int = 16,
    rows: int = TRAIN,
    seed: int = 0,
) -> Dataset:
    """Draw rows of blanks, L symbols, a mark, and the same symbols but the last.

    L differs from row to row, and the stretch ends at the row's last token, so no fixed distance
    answers: at the mark asked is the first symbol, behind each symbol again the next one, always L
    tokens back. A symbol may stand twice. Rows hold more room than the longest stretch needs, so
    that a model can be asked for stretches longer than it was trained on: the same task with
    another `shortest` and `length`. The chance level is that of a guess among all symbols. 8,192
    training rows, 512 for validation, 1,024 for the test.

    Args:
        symbols: different symbols there are; their ids come first, then those of blank and mark.
        shortest: the fewest symbols of a stretch, >= 1.
        length: the most, >= shortest.
        room: the most that a row could hold, >= length; a row has 2 * room tokens.
        rows: of the training part.
        seed: of the rows; no training seed changes them.

    Shapes:
        inputs, labels: int64 [N, 2 * room]

    Raises:
        ConfigError: if a size is not legal, or there are too few different rows.

    Source: Jelassi et al. 2024, "Repeat After Me", arXiv:2402.01032. Differs: rows have one
        length, blanks stand before the stretch, and symbols are drawn alike.
    """
    sizes = {"symbols": symbols, "shortest": shortest, "length": length, "room": room}
    check_counts("copy", **sizes, rows=rows)
    check_counts("copy", least=0, seed=seed)
    if not shortest <= length <= room:
        raise ConfigError(
            f"copy: stretches of {shortest} to {length} symbols in room for {room}; give shortest "
            "<= length <= room."
        )
    blank, mark = symbols, symbols + 1

    def draw(part: str, random: np.random.RandomState, count: int) -> Split:  # noqa: ARG001
        own = random.randint(shortest, length + 1, size=(count, 1))
        body = random.randint(0, symbols, size=(count, 2 * room))
        at, begins = np.arange(2 * room), 2 * room - own
        inputs = np.where(at >= begins - own, body, blank)
        answers = np.take_along_axis(inputs, (at - own).clip(min=0), axis=1)
        labels = np.where(at >= begins, answers, NOT_ASKED)
        inputs = np.where(at > begins, np.roll(answers, 1, axis=1), inputs)
        inputs = np.where(at == begins, mark, inputs)
        return Split(torch.from_numpy(inputs).long(), torch.from_numpy(labels).long())

    return drawn(
        "copy",
        draw,
        rows=rows,
        seed=seed,
        num_classes=symbols + 2,
        title=f"Copying {shortest} to {length} symbols",
        source="drawn at random, after Jelassi et al. 2024 (arXiv:2402.01032)",
        chance=1 / symbols,
    )
