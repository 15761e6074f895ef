"""A token at a time, each row its own."""

from __future__ import annotations

from suffice.generate.choice import Choice
from suffice.generate.prompts import Prompts
from suffice.generate.read import read
from suffice.generate.rows import Rows
from suffice.generate.writer import Writer
from suffice.models.state import ModelState


def write(
    lm: Writer, prompts: Prompts, state: ModelState, rows: Rows, choice: Choice, piece: int | None
) -> None:
    """Fill the rows.

    Args:
        lm: the model.
        prompts: what it goes on from.
        state: of the model, empty.
        rows: where new tokens are written.
        choice: of each token.
        piece: prompt tokens read at once; None = all.
    """
    tokens = choice(read(lm, prompts, state, piece))
    while not rows.write(tokens):
        tokens = choice(lm.step(tokens, state))
