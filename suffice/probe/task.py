"""One probe: what models are trained on, where their answers are read, and what must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffice.data import Dataset, Split
from suffice.recipes import Recipe

SOLVED = 0.99
"""Share of the validation answers at which a task counts as solved, and training ends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Some of a task's questions, all of one difficulty.

    Args:
        name: what sets them apart; "" for all questions there are.
        split: the rows and what is asked of them.
        nearest: tokens from a question back to what answers it, the least of these questions.
        kept: of the past, the tokens that a rolling memory keeps while they are asked; None = all
            of it, and no memory.
    """

    name: str
    split: Split
    nearest: int = 1
    kept: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One training of a probe and what is asked afterwards.

    Args:
        name: of its folder and in tables.
        recipe: what is trained.
        look: from the data set to the questions asked of the trained model.
        pairs: of an associative recall, which the figure shows; None for other tasks.
        must_fail: why no model can do this; "" for tasks that can be done.
        own: the mechanisms it is trained with whatever was asked for; () = those asked for.
        beside: a mechanism that is trained too, as a control, where it was not asked for.
        change: what is done to the data first.
    """

    name: str
    recipe: Recipe
    look: Callable[[Dataset], tuple[View, ...]]
    pairs: int | None = None
    must_fail: str = ""
    own: tuple[str, ...] = ()
    beside: str | None = None
    change: Callable[[Dataset], Dataset] = lambda dataset: dataset

    def mechanisms(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """Return the mechanisms that are trained, of those asked for."""
        if self.own:
            return self.own
        missing = self.beside is not None and self.beside not in asked
        return (*asked, self.beside) if missing else asked  # type: ignore[return-value]
