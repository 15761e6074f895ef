"""What the adviser says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from suffice.advise.evidence import Evidence
from suffice.advise.needs import Needs
from suffice.advise.request import Request
from suffice.measure.decode import encode
from suffice.measure.timing import Times

STATUSES = ("measured", "ruled out", "illegal", "not measured")


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """From which length on a candidate is faster than Standard.

    Args:
        at: the shortest of the measured lengths from which on it always is; None = of none.
        ratios: its time over Standard's by length, median and quartiles over the rounds.
    """

    at: int | None
    ratios: tuple[tuple[int, Times], ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One composition and its place.

    Args:
        name: the composition, see `Composition`.
        rank: from 1; candidates whose times overlap share one. None = not ranked.
        status: "measured", "ruled out", "illegal" or "not measured".
        reason: why it stands there, in a sentence.
        needs: bytes and work in closed form; None where it is illegal.
        predicted: its work over Standard's; None where it is illegal.
        seconds: of a token or an input: median and quartiles over the rounds.
        ratio: the same over Standard's of the same round.
        first_seconds: of reading the input before the first token, the median.
        first_ratio: the same over Standard's of the same round, median and quartiles.
        rounds: samples behind these.
        crossover: the lengths at which it was compared; None = at none but the asked one.
        evidence: finished comparisons of its quality.
        evidence_told: the same in words, or what to run.
    """

    name: str
    rank: int | None
    status: str
    reason: str
    needs: Needs | None = None
    predicted: float | None = None
    seconds: Times | None = None
    ratio: Times | None = None
    first_seconds: float | None = None
    first_ratio: Times | None = None
    rounds: int = 0
    crossover: Crossover | None = None
    evidence: tuple[Evidence, ...] = ()
    evidence_told: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to take, and everything behind it.

    Args:
        request: what was asked.
        model: whose sizes were measured.
        length: tokens or patches of an input.
        unit: what times are for each of, "token" or "input".
        device: "cpu" or "cuda".
        winner: name of the recommended composition; None = none is recommended.
        sentence: the recommendation.
        notes: what else is to be known, a sentence each.
        places: every composition: ranked ones first, then ruled out, not measured, illegal.
        python: lines that make and use the recommended model.
        cli: commands that do; none where no command reaches it.
        machine: facts about the machine.
        versions: of the software.
        seconds: all of it took.
        interrupted: whether it was stopped before it was done.
    """

    request: Request
    model: str
    length: int
    unit: str
    device: str
    winner: str | None
    sentence: str
    notes: tuple[str, ...]
    places: tuple[Place, ...]
    python: tuple[str, ...]
    cli: tuple[str, ...]
    machine: dict[str, Any]
    versions: dict[str, Any]
    seconds: float
    interrupted: bool = False

    def find(self, name: str) -> Place | None:
        """Return the place of a composition, None if it was not considered."""
        return next((place for place in self.places if place.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts and lists that JSON can say."""
        return encode(dataclasses.asdict(self))
