"""The loss of a text that goes on from another, for many pairs at once.

Letters: B pairs, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from suffice.errors import DataError
from suffice.models import LM
from suffice.text import Tokenizer

Pair = tuple[list[int], list[int]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a model gives a continuation.

    Args:
        loss: summed over its tokens, nats.
        tokens: how many it has.
        greedy: whether each of them was the most likely one.
    """

    loss: float
    tokens: int
    greedy: bool


def apart(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two for themselves, as build-nanogpt does."""
    return _some(tokenizer.encode(context), tokenizer.encode(continuation), continuation)


def joined(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two as one text, cut after the tokens of the context, as lm-evaluation-harness."""
    whole = tokenizer.encode(context + continuation)
    cut = len(tokenizer.encode(context))
    return _some(whole[:cut], whole[cut:], continuation)


def losses(
    lm: LM,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 32,
    step: Callable[[int], None] = lambda _: None,
) -> list[Found]:
    """Return what a model gives each continuation.

    Pairs of like length are computed together. What is longer than the model's rows loses its
    beginning.

    Args:
        lm: in evaluation.
        pairs: (context, continuation), token ids.
        batch_size: pairs at once.
        step: told how many pairs are done.
    """
    found: list[Found | None] = [None] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            for number, one in zip(chosen, _batch(lm, [pairs[n] for n in chosen]), strict=True):
                found[number] = one
            step(min(start + batch_size, len(order)))
    return [one for one in found if one is not None]


def _batch(lm: LM, pairs: Sequence[Pair]) -> list[Found]:
    device = lm.device
    rows = [(context + asked)[-(lm.config.length + 1) :] for context, asked in pairs]
    length = max(map(len, rows)) - 1
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    valid = torch.zeros(len(rows), length, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row) - 1] = torch.tensor(row[:-1])
        valid[number, : len(row) - 1] = True
    logits = lm(tokens.to(device), valid=None if bool(valid.all()) else valid.to(device))
    found = []
    for number, (row, (_, asked)) in enumerate(zip(rows, pairs, strict=True)):
        count = min(len(asked), len(row) - 1)
        own = logits[number, len(row) - 1 - count : len(row) - 1].float()
        targets = torch.tensor(row[-count:], device=device)
        found.append(
            Found(
                loss=float(F.cross_entropy(own, targets, reduction="sum")),
                tokens=count,
                greedy=bool((own.argmax(dim=-1) == targets).all()),
            )
        )
    return found


def _some(context: list[int], asked: list[int], text: str) -> Pair:
    if not context or not asked:
        raise DataError(
            f"the tokenizer leaves nothing of a context, or of its continuation {text!r:.60}; give "
            "items with text in both."
        )
    return context, asked
