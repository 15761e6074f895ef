"""Evidence for a claim, and the verdict that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CONFIRMED = "confirmed"
NOT_CONFIRMED = "not confirmed"
NOT_TESTED = "not tested here"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim against what was computed or measured.

    Args:
        theirs: what the paper's own figures give; empty where they say nothing.
        ours: what was measured or computed here; empty where nothing was.
        holds: whether each part of the claim held; None for a part that was not tested.
        tables: whose trainings or times it rests on.
    """

    theirs: str = ""
    ours: str = ""
    holds: tuple[bool | None, ...]
    tables: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Not confirmed if any part failed; confirmed if all were tested and held."""
        return verdict(self.holds)


def verdict(holds: Iterable[bool | None]) -> str:
    """Return the verdict of the parts of a claim.

    Example:
        >>> verdict([True, None]), verdict([False, None]), verdict([True]), verdict([])
        ('not tested here', 'not confirmed', 'confirmed', 'not tested here')
    """
    parts = list(holds)
    if any(part is False for part in parts):
        return NOT_CONFIRMED
    return CONFIRMED if parts and all(parts) else NOT_TESTED


def percent(value: float, *, digits: int = 1) -> str:
    """Write a share with its sign.

    Example:
        >>> percent(0.0345), percent(-0.2)
        ('+3.5%', '-20.0%')
    """
    return f"{100 * value:+.{digits}f}%"
