"""Synthetic tasks (copy, induction, MQAR, passkey, two hops), equal on every machine.

Each has `rows` training rows, 512 for validation and 1,024 for the test. `seed` draws the rows; no
training seed changes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from suffice.data.dataset import IGNORE_INDEX, Dataset, Split, check_counts
from suffice.errors import ConfigError

TRAIN, VALIDATION, TEST = 8_192, 512, 1_024  # rows

Draw = Callable[[str, np.random.RandomState, int], tuple[np.ndarray, np.ndarray]]
"""From (part, random stream, rows) to inputs and labels of that many rows, int [N, T] each."""


def stream(task: str, part: str, seed: int) -> np.random.RandomState:
    """Return the random numbers of one part of a task.

    They come from NumPy's legacy generator, whose stream is frozen for good.
    """
    digest = hashlib.blake2b(f"{task}/{part}/{seed}".encode(), digest_size=4).digest()
    return np.random.RandomState(int.from_bytes(digest, "little"))


def subsets(random: np.random.RandomState, rows: int, *, of: int, size: int) -> np.ndarray:
    """Draw `size` different numbers below `of` for each row, in random order, [rows, size]."""
    return random.random_sample((rows, of)).argsort(axis=1, kind="stable")[:, :size]


def _random_task(
    name: str, draw: Draw, *, rows: int, seed: int, paper: str, **fields: Any
) -> Dataset:
    check_counts(name, rows=rows)
    check_counts(name, least=0, seed=seed)
    parts = {}
    for part, count in {"train": rows, "validation": VALIDATION, "test": TEST}.items():
        inputs, labels = draw(part, stream(name, part, seed), count)
        parts[part] = Split(torch.from_numpy(inputs).long(), torch.from_numpy(labels).long())
    _refuse_shared_rows(name, parts)
    return Dataset(name=name, source=f"drawn at random, after {paper}", **parts, **fields)


def _refuse_shared_rows(name: str, parts: dict[str, Split]) -> None:
    part_of: dict[bytes, str] = {}
    for part, split in parts.items():
        for row in split.inputs.numpy():
            other = part_of.setdefault(row.tobytes(), part)
            if other != part:
                raise ConfigError(
                    f"{name}: a row of {part} is one of {other} too, so few different rows do "
                    "these sizes allow; give larger ones."
                )


def _unlabelled(tokens: np.ndarray) -> np.ndarray:
    return np.full_like(tokens, IGNORE_INDEX)


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
    answers: the label of the mark is the first symbol, that of each repeated symbol the next one,
    always L tokens back. A symbol may occur twice. Rows have more room than the longest stretch
    needs, so that a model can be tested on stretches longer than it was trained on: the same task
    with another `shortest` and `length`. The chance level is that of a guess among all symbols.

    Args:
        symbols: different symbols there are; their ids come first, then those of blank and mark.
        shortest: the fewest symbols of a stretch, >= 1.
        length: the most, >= shortest.
        room: the most that a row could hold, >= length; a row has 2 * room tokens.

    Shapes:
        inputs, labels: int64 [N, 2 * room]

    Source: Jelassi et al. 2024, "Repeat After Me", arXiv:2402.01032. Differs: rows have one
        length, blanks precede the stretch, and symbols are drawn alike.
    """
    sizes = {"symbols": symbols, "shortest": shortest, "length": length, "room": room}
    check_counts("copy", **sizes)
    if not shortest <= length <= room:
        raise ConfigError(
            f"copy: stretches of {shortest} to {length} symbols in room for {room}; give shortest "
            "<= length <= room."
        )
    blank, mark = symbols, symbols + 1

    def draw(part: str, random: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001
        size = random.randint(shortest, length + 1, size=(count, 1))
        body = random.randint(0, symbols, size=(count, 2 * room))
        at, begins = np.arange(2 * room), 2 * room - size
        inputs = np.where(at >= begins - size, body, blank)
        answers = np.take_along_axis(inputs, (at - size).clip(min=0), axis=1)
        labels = np.where(at >= begins, answers, IGNORE_INDEX)
        inputs = np.where(at > begins, np.roll(answers, 1, axis=1), inputs)
        inputs = np.where(at == begins, mark, inputs)
        return inputs, labels

    return _random_task(
        "copy",
        draw,
        rows=rows,
        seed=seed,
        num_classes=symbols + 2,
        title=f"Copying {shortest} to {length} symbols",
        paper="Jelassi et al. 2024 (arXiv:2402.01032)",
        chance=1 / symbols,
    )


def induction(
    *, symbols: int = 16, length: int = 16, repeated: int = 8, rows: int = TRAIN, seed: int = 0
) -> Dataset:
    """Draw rows of `length` different symbols and then a stretch of them from anywhere, again.

    The label of each token of the stretch is the symbol that followed it the first time. The
    stretch starts anywhere, so no fixed distance answers: a model has to find the token and attend
    to the one after it, as induction heads do. The chance level is that of a guess among the
    symbols of the row that the stretch has not shown yet.

    Args:
        symbols: different symbols there are, >= length.
        length: length of the sequence, tokens.
        repeated: tokens of the stretch, each with a label; below length. A row has
            length + repeated tokens.

    Shapes:
        inputs, labels: int64 [N, length + repeated]

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv:2209.11895.
        Differs: the paper repeats whole sequences that may hold a token twice; here a token has
        one successor, so every answer is determined.
    """
    check_counts("induction", symbols=symbols, length=length, repeated=repeated)
    if not repeated < length <= symbols:
        raise ConfigError(
            f"induction: {repeated} tokens again of {length} out of {symbols} symbols; a sequence "
            "holds no symbol twice and goes on behind the stretch, so give repeated < length <= "
            "symbols."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001
        sequence = subsets(random, count, of=symbols, size=length)
        start = random.randint(0, length - repeated, size=(count, 1))
        at = start + np.arange(repeated)
        repeat = np.take_along_axis(sequence, at, axis=1)
        answers = np.take_along_axis(sequence, at + 1, axis=1)
        return np.hstack([sequence, repeat]), np.hstack([_unlabelled(sequence), answers])

    return _random_task(
        "induction",
        draw,
        rows=rows,
        seed=seed,
        num_classes=symbols,
        title=f"Induction, {repeated} of {length} symbols again",
        paper="Olsson et al. 2022 (arXiv:2209.11895)",
        chance=sum(1 / (length - 1 - n) for n in range(repeated)) / repeated,
    )


def mqar(
    *,
    pairs: int = 8,
    keys: int = 16,
    values: int = 16,
    rows: int = TRAIN,
    seed: int = 0,
    shuffled: bool = False,
) -> Dataset:
    """Draw rows k1 v1 k2 v2 ... and then the same keys in another order; labels are their values.

    Keys and values of a row are all different. Every key is asked once, and no answer is shown, so
    a model that knows the values of a row but not their keys is right in 1 / pairs of the answers:
    the chance level.

    Args:
        pairs: pairs of a row, >= 1; a row has 3 * pairs tokens and `pairs` labels.
        keys: different keys there are, >= pairs; their ids come first.
        values: different values there are, >= pairs; their ids follow.
        shuffled: whether the answers of a row are shuffled among its keys: a negative control, on
            which nothing can be right more often than by chance.

    Shapes:
        inputs, labels: int64 [N, 3 * pairs]

    Source: Arora et al. 2023, "Zoology", arXiv:2312.04927, section 3. Differs: the paper asks at
        distances drawn from a power law, with the answers shown and noise between; here all keys
        follow at once, so no answer can be found by elimination.
    """
    check_counts("mqar", pairs=pairs, keys=keys, values=values)
    if min(keys, values) < pairs:
        raise ConfigError(
            f"mqar: {pairs} pairs of {keys} keys and {values} values; those of a row are all "
            "different, so give at least `pairs` keys and values."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:
        row_keys = subsets(random, count, of=keys, size=pairs)
        row_values = keys + subsets(random, count, of=values, size=pairs)
        order = subsets(random, count, of=pairs, size=pairs)
        facts = np.stack([row_keys, row_values], axis=2).reshape(count, 2 * pairs)
        queries = np.take_along_axis(row_keys, order, axis=1)
        answers = np.take_along_axis(row_values, order, axis=1)
        if shuffled:
            other = stream("mqar", f"shuffled {part}", seed)
            answers = np.stack([row[other.permutation(pairs)] for row in answers])
        return np.hstack([facts, queries]), np.hstack([_unlabelled(facts), answers])

    return _random_task(
        "mqar",
        draw,
        rows=rows,
        seed=seed,
        num_classes=keys + values,
        title=f"Multi-query associative recall, {pairs} pairs",
        paper="Arora et al. 2023 (arXiv:2312.04927)",
        chance=1 / pairs,
    )


DIGITS = tuple("0123456789")
KEY, NUMBER, ASK = 10, 11, 12  # ids of the three marks
FILLER = ("rain", "fell", "on", "the", "roof", "and", "nobody", "came")
VOCABULARY = (*DIGITS, "<passkey>", "<number>", "<ask>", *FILLER)
TENTHS = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}  # of all numbers
MAX_DIGITS = 6


def passkey(
    *, length: int = 64, digits: int = 3, decoys: int = 3, rows: int = TRAIN, seed: int = 0
) -> Dataset:
    """Draw rows of filler with `<passkey> 1 2 3` somewhere, and `<ask> 1 2` at the end.

    Other numbers are in the filler after `<number>`, so finding digits is not enough. At the end
    each digit of the passkey is a label, given those before it. No number of a part, passkey or
    other, is in another part. The chance level is that of one of ten digits.

    Args:
        length: length of a row, tokens, the question included.
        digits: digits of a number, 1 to 6; which is also the number of labels of a row.
        decoys: other numbers in the filler, >= 0.

    Shapes:
        inputs, labels: int64 [N, length]

    Source: Mohtashami and Jaggi 2023, "Landmark Attention", arXiv:2305.16300, section 4.2.
        Differs: the filler is random words instead of the same sentences, and holds other numbers.
    """
    check_counts("passkey", length=length, digits=digits)
    check_counts("passkey", least=0, decoys=decoys)
    if digits > MAX_DIGITS:
        raise ConfigError(f"passkey: digits={digits}; give at most {MAX_DIGITS}.")
    count = decoys + 1
    least = digits + count * (digits + 1)
    if length < least:
        raise ConfigError(
            f"passkey: numbers and question need {least} tokens and length is {length}; give a "
            "larger length, or fewer decoys or digits."
        )
    numbers = _numbers(digits, seed)

    def draw(part: str, random: np.random.RandomState, rows: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = (len(numbers) * tenths // 10 for tenths in TENTHS[part])
        return _passkey_rows(random, numbers[random.randint(low, high, size=(rows, count))], length)

    return _random_task(
        "passkey",
        draw,
        rows=rows,
        seed=seed,
        num_classes=len(VOCABULARY),
        title=f"Passkey of {digits} digits and {decoys} other numbers in {length} tokens",
        paper="Mohtashami and Jaggi 2023 (arXiv:2305.16300)",
        vocabulary=VOCABULARY,
        chance=1 / len(DIGITS),
    )


def _numbers(digits: int, seed: int) -> np.ndarray:
    """Return the digits of every number, in an order that seed fixes, int64 [10^D, D]."""
    order = stream("passkey", "numbers", seed).permutation(10**digits)
    return order[:, None] // 10 ** np.arange(digits)[::-1] % 10


def _passkey_rows(
    random: np.random.RandomState, numbers: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Put numbers [N, K, D] into filler, with one marked as the passkey and queried at the end."""
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
    labels = _unlabelled(inputs)
    labels[:, body:] = answers
    return inputs, labels


def two_hop(*, chains: int = 3, symbols: int = 6, rows: int = TRAIN, seed: int = 0) -> Dataset:
    """Draw rows of shuffled facts a b and b c, then every a and b alone, then the a's once more.

    At the second occurrence of an a the label is the c of its b, so one lookup cannot answer: its
    result has to be looked up again. At the first occurrence of an a or b the label is what its own
    fact says, but in training alone: two hops are learned from one. A b that is found and a b that
    leads on are different tokens. No answer is shown, so a model that knows the c's of a row but
    not whose they are is right in 1 / chains of the answers: the chance level.

    Args:
        chains: chains of a row, >= 1; a row has 7 * chains tokens and `chains` labels.
        symbols: number of different a's, of b's and of c's, >= chains. Ids: a's, b's that lead on,
            b's that are found, c's.

    Shapes:
        inputs, labels: int64 [N, 7 * chains]

    Source: Sanford et al. 2024, "Transformers, parallel computation, and logarithmic depth",
        arXiv:2402.09268 (k-hop induction heads). Differs: the hops are facts of two
        tokens, and each is queried by its first one.
    """
    check_counts("two_hop", chains=chains, symbols=symbols)
    if symbols < chains:
        raise ConfigError(
            f"two_hop: {chains} chains of {symbols} symbols; those of a row are all different, so "
            "give at least `chains` symbols."
        )

    def draw(part: str, random: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:
        a, b, c = (subsets(random, count, of=symbols, size=chains) for _ in range(3))
        a, b, b_end, c = a, b + symbols, b + 2 * symbols, c + 3 * symbols
        keys, values = np.hstack([a, b]), np.hstack([b_end, c])
        order, first = (subsets(random, count, of=2 * chains, size=2 * chains) for _ in range(2))
        second = subsets(random, count, of=chains, size=chains)
        facts = np.take_along_axis(np.stack([keys, values], axis=2), order[:, :, None], axis=1)
        facts = facts.reshape(count, 4 * chains)
        inputs = [facts, *(np.take_along_axis(keys, at, axis=1) for at in (first, second))]
        one_hop = np.take_along_axis(values, first, axis=1)
        if part != "train":
            one_hop = _unlabelled(one_hop)
        labels = [_unlabelled(facts), one_hop, np.take_along_axis(c, second, axis=1)]
        return np.hstack(inputs), np.hstack(labels)

    return _random_task(
        "two_hop",
        draw,
        rows=rows,
        seed=seed,
        num_classes=4 * symbols,
        title=f"Two hops, {chains} chains",
        paper="Sanford et al. 2024 (arXiv:2402.09268)",
        chance=1 / chains,
    )
