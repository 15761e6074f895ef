"""Prompts into a state, in pieces.

Letters: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from suffice.generate.prompts import Prompts
from suffice.generate.writer import Writer
from suffice.memory import Memory
from suffice.models.state import ModelState

LEAST, WINDOWS = 1024, 4  # tokens of a piece: small ones make slow products


def piece_of(memory: Memory, chunk: int | None) -> int | None:
    """Return the tokens read at once: as asked, or a few windows' worth; None = all."""
    if chunk is not None or memory.window is None:
        return chunk
    return max(WINDOWS * memory.window, LEAST)


def read(lm: Writer, prompts: Prompts, state: ModelState, piece: int | None) -> Tensor:
    """Return the logits [B, V] behind the prompts, which the state has read then.

    Args:
        lm: the model.
        prompts: what is read.
        state: of the model, empty.
        piece: tokens read at once; None = all.
    """
    length = prompts.tokens.shape[1]
    step = piece or length
    for start in range(0, length, step):
        span = slice(start, start + step)
        valid = None if prompts.valid is None else prompts.valid[:, span]
        features = lm.features(prompts.tokens[:, span], valid=valid, state=state)
    return lm.logits(features[:, -1])
