"""The claims of the papers, each with the check that decides it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from suffice.reproduce.evidence import counted, ranks, timed, trained
from suffice.reproduce.evidence.finding import Finding

CHECKS: dict[str, Callable[..., Finding]] = {
    check.__name__: check
    for check in (
        counted.alignment,
        counted.averaged,
        counted.executed,
        counted.fewer,
        counted.highest,
        counted.leaves_keys_out,
        counted.longer,
        counted.output_map,
        counted.printed,
        counted.products,
        counted.quotient,
        counted.rows_of_keys,
        counted.scale,
        counted.shared_heads,
        counted.sized,
        counted.smaller,
        counted.tokens,
        counted.untested,
        ranks.gains_of_rows,
        ranks.rank,
        timed.savings,
        trained.ahead,
        trained.best_everywhere,
        trained.flat,
        trained.gains,
    )
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something the papers say.

    Args:
        id: its number.
        where: version and place.
        claim: what is said, in our words.
        check: name of the function that decides it, a key of CHECKS.
        args: what the check is given.
    """

    id: int
    where: str
    claim: str
    check: str
    args: dict[str, Any]

    def examine(self) -> Finding:
        """Return what is found about it with the results that are there now."""
        return CHECKS[self.check](**self.args)


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim, by number.

    Example:
        >>> len(claims()), claims()[10].check
        (40, 'averaged')
    """
    text = resources.files("suffice.reproduce.evidence").joinpath("claims.json").read_text("utf-8")
    return tuple(Claim(**given) for given in json.loads(text))
