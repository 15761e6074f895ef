"""Evidence for a claim, and the verdict that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

CONFIRMED = "confirmed"
CONTRADICTED = "contradicted"
UNDECIDED = "not decided by this evidence"
NOT_TESTED = "not tested here"


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """One claim against what was computed or measured."""

    theirs: str = ""  # result of the source's own figures; empty where they say nothing
    ours: str = ""  # result that was measured or computed here; empty where nothing was
    # whether each part of the claim held; None for a part that the evidence leaves open
    holds: tuple[bool | None, ...]
    tables: tuple[str, ...] = ()  # tables whose trainings or times it rests on
    # effort of a test, where nothing here tests the claim; `ours` is then of smaller models and
    # decides nothing
    needs: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict: one failed part contradicts the claim, all parts confirm it.

        Example:
            >>> ClaimFinding(holds=(True, False)).verdict, ClaimFinding(holds=(True, True)).verdict
            ('contradicted', 'confirmed')
            >>> ClaimFinding(ours="+0.8%", holds=(True, None)).verdict
            'not decided by this evidence'
            >>> ClaimFinding(holds=()).verdict
            'not tested here'
        """
        if any(part is False for part in self.holds):
            return CONTRADICTED
        if self.holds and all(self.holds):
            return CONFIRMED
        return UNDECIDED if self.ours and not self.needs else NOT_TESTED


def at_least(stated: float, low: float, high: float) -> bool | None:
    """Return whether a 95% interval shows an effect as large as stated; None: it does not tell.

    An interval that reaches the stated value shows it only if it excludes no effect as well:
    otherwise the claim would be the safer the fewer trainings there are.

    Example:
        >>> at_least(0.02, 0.01, 0.03), at_least(0.02, -0.01, 0.03), at_least(0.02, -0.01, 0.01)
        (True, None, False)
    """
    if high < stated:
        return False
    return True if low > 0.0 else None


def below_zero(low: float | None, high: float | None) -> bool | None:
    """Return whether an interval lies below 0, False if it lies above, None if it holds 0."""
    if low is None or high is None or low <= 0.0 <= high:
        return None
    return high < 0.0


def percent(value: float, *, digits: int = 1) -> str:
    """Write a share with its sign.

    Example:
        >>> percent(0.0345), percent(-0.2)
        ('+3.5%', '-20.0%')
    """
    return f"{100 * value:+.{digits}f}%"
