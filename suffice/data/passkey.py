"""Passkey: one number among others in long filler, asked for at the end.

Letters: N rows, T tokens, K numbers of a row, D digits of a number.
"""

from __future__ import annotations

import numpy as np
import torch

from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.data.drawn import TRAIN, check_counts, drawn, stream
from suffice.errors import ConfigError

DIGITS = tuple("0123456789")
KEY, NUMBER, ASK = 10, 11, 12  # ids of the three marks
FILLER = ("rain", "fell", "on", "the", "roof", "and", "nobody", "came")
VOCABULARY = (*DIGITS, "<passkey>", "<number>", "<ask>", *FILLER)
TENTHS = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}  # of all numbers
MOST = 6  # digits


def passkey(
    *, length: int = 64, digits: int = 3, decoys: int = 3, rows: int = TRAIN, seed: int = 0
) -> Dataset:
    """Draw rows of filler with `<passkey> 1 2 3` somewhere, and `<ask> 1 2` at the end.

    Other numbers stand in the filler after `<number>`, so it is not enough to have seen digits.
    At the end each digit of the passkey is asked for, given those before it. No number of a part,
    passkey or other, is in another part. The chance level is that of one of ten digits. 8,192
    training rows, 512 for validation, 1,024 for the test.

    Args:
        length: of a row, tokens, the question included.
        digits: of a number, 1 to 6; as many answers are asked for.
        decoys: other numbers in the filler, >= 0.
        rows: of the training part.
        seed: of the rows; no training seed changes them.

    Shapes:
        inputs, labels: int64 [N, length]

    Raises:
        ConfigError: if a size is not legal, the numbers do not fit, or there are too few
            different rows.

    Source: Mohtashami and Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
        Differs: the filler is random words instead of the same sentences, and holds other numbers.
    """
    check_counts("passkey", length=length, digits=digits, rows=rows)
    check_counts("passkey", least=0, decoys=decoys, seed=seed)
    if digits > MOST:
        raise ConfigError(f"passkey: digits={digits}; give at most {MOST}.")
    count = decoys + 1
    least = digits + count * (digits + 1)
    if length < least:
        raise ConfigError(
            f"passkey: numbers and question need {least} tokens and length is {length}; give a "
            "larger length, or fewer decoys or digits."
        )
    numbers = _numbers(digits, seed)

    def draw(part: str, random: np.random.RandomState, rows: int) -> Split:
        low, high = (len(numbers) * tenths // 10 for tenths in TENTHS[part])
        return _rows(random, numbers[random.randint(low, high, size=(rows, count))], length)

    return drawn(
        "passkey",
        draw,
        rows=rows,
        seed=seed,
        num_classes=len(VOCABULARY),
        title=f"Passkey of {digits} digits and {decoys} other numbers in {length} tokens",
        source="drawn at random, after Mohtashami and Jaggi 2023 (arXiv:2305.16300)",
        vocabulary=VOCABULARY,
        chance=1 / len(DIGITS),
    )


def _numbers(digits: int, seed: int) -> np.ndarray:
    """Return the digits of every number, in an order that seed fixes, int64 [10^D, D]."""
    order = stream("passkey", "numbers", seed).permutation(10**digits)
    return order[:, None] // 10 ** np.arange(digits)[::-1] % 10


def _rows(random: np.random.RandomState, numbers: np.ndarray, length: int) -> Split:
    """Put numbers [N, K, D] into filler, one of them marked as the passkey, and ask for it."""
    rows, count, digits = numbers.shape
    row, body = np.arange(rows), length - digits
    which = random.randint(0, count, size=rows)
    marks = np.full((rows, count, 1), NUMBER)
    marks[row, which] = KEY
    # the tokens of filler before each number, in rising order, then those of the numbers before
    free = body - count * (digits + 1)
    before = np.sort(random.randint(0, free + 1, size=(rows, count)), axis=1)
    starts = before + (digits + 1) * np.arange(count)
    inputs = random.randint(len(VOCABULARY) - len(FILLER), len(VOCABULARY), size=(rows, length))
    at = starts[:, :, None] + np.arange(digits + 1)
    inputs[row[:, None, None], at] = np.concatenate([marks, numbers], axis=2)
    answers = numbers[row, which]
    inputs[:, body] = ASK
    inputs[:, body + 1 :] = answers[:, :-1]
    labels = np.full_like(inputs, NOT_ASKED)
    labels[:, body:] = answers
    return Split(torch.from_numpy(inputs).long(), torch.from_numpy(labels).long())
