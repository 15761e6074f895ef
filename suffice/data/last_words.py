"""Texts as the ids of their last words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from suffice.data.dataset import Split
from suffice.data.vocabulary import PAD, START, Vocabulary, words


def last_words(
    texts: Sequence[str], labels: Sequence[int], vocabulary: Vocabulary, length: int
) -> Split:
    """Return texts as rows of their last `length` ids, padded in front.

    A text is its words after a start token, which a text that fills the row loses.

    Shapes:
        inputs: int64 [N, length]; labels: int64 [N]; valid: bool [N, length]
    """
    ids = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in enumerate(texts):
        kept = vocabulary.encode(words(text)[-length:])
        if len(kept) < length:
            kept = [START, *kept]
        ids[row, length - len(kept) :] = kept
    inputs = torch.from_numpy(ids)
    return Split(inputs, torch.tensor(labels), inputs != PAD)
