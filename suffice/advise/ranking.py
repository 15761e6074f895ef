"""The places of candidates: who is faster than whom, who keeps to the limits, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from suffice.advise.composition import STANDARD, Candidate
from suffice.advise.evidence import Evidence, missing
from suffice.advise.needs import Needs
from suffice.advise.race import Race
from suffice.advise.request import Base, Request, each
from suffice.advise.text import describe_bytes, format_bytes, format_seconds, reason
from suffice.measure.timing import Times
from suffice.records import encode


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """From which length a candidate is faster than Standard.

    Args:
        at: the shortest measured length from which it always is; None = there is none.
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
        crossover: the lengths at which it was compared; None = only at the requested one.
        evidence: finished comparisons of its quality.
        evidence_told: the same in sentences, or the command that would measure it.
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
    """The recommendation, and everything behind it.

    Args:
        request: the task and its limits.
        model: whose sizes were measured.
        length: tokens or patches of an input.
        unit: what times are for each of, "token" or "input".
        device: "cpu" or "cuda".
        winner: name of the recommended composition; None = none is recommended.
        sentence: the recommendation.
        notes: further sentences.
        places: every composition: ranked ones first, then ruled out, not measured, illegal.
        python: lines that build and use the recommended model.
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
        """Return plain data for JSON."""
        return encode(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a request.

    Args:
        memory: bytes; None = as many as there are.
        latency: seconds of a token or an input; None = any.
        unit: what times are for each of.
    """

    memory: int | None
    latency: float | None
    unit: str

    def memory_excess(self, needs: Needs) -> str | None:
        """Return why a candidate needs too much memory, None if it does not."""
        if self.memory is None or needs.total <= self.memory:
            return None
        return (
            f"needs {format_bytes(needs.total)} ({describe_bytes(needs)}), more than "
            f"{format_bytes(self.memory)}"
        )

    def latency_excess(self, seconds: Times) -> str | None:
        """Return why a candidate is too slow, None if it is not."""
        if self.latency is None or seconds.median <= self.latency:
            return None
        return (
            f"{format_seconds(seconds.median)} {each(self.unit)} are more than "
            f"{format_seconds(self.latency)}"
        )


@dataclass(kw_only=True)
class Study:
    """Candidates, what they need, what is known of them, and their measurements.

    Args:
        base: the model.
        limits: of the request.
        candidates: that are legal, by name, Standard first.
        needs: of each.
        illegal: why others are not, by name.
        evidence: finished comparisons of each.
        losses: who is shown to lose more quality than may be lost, and why.
        available: bytes of the machine; what needs more is not measured.
        race: the measurements at the requested length.
        by_length: times over Standard's at shorter lengths, by name.
    """

    base: Base
    limits: Limits
    candidates: dict[str, Candidate]
    needs: dict[str, Needs]
    illegal: dict[str, str]
    evidence: dict[str, tuple[Evidence, ...]]
    losses: dict[str, str]
    available: int | None
    race: Race = field(default_factory=lambda: Race(baseline=STANDARD))
    by_length: dict[str, dict[int, Times]] = field(default_factory=dict)

    @cached_property
    def oversized(self) -> dict[str, str]:
        """Who needs too much memory, and why."""
        reasons = {name: self.limits.memory_excess(one) for name, one in self.needs.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Names of candidates that compute the same, by the first of them."""
        first: dict[object, str] = {}
        groups: dict[str, list[str]] = {}
        for name, candidate in self.candidates.items():
            groups.setdefault(first.setdefault(candidate.identity, name), []).append(name)
        return groups

    @property
    def measured(self) -> Race:
        """The race in which every candidate of a group has the samples of its first."""
        samples = {
            name: self.race.samples[first]
            for first, names in self.groups.items()
            if first in self.race.samples
            for name in names
        }
        return Race(baseline=STANDARD, samples=samples)

    def order(self) -> list[str]:
        """Return who is to be measured: Standard, then by closed form the most promising.

        Standard is measured wherever this machine holds it, as the yardstick. One candidate of each
        group is measured. Packings take turns, and within each the mechanisms do: otherwise a short
        budget would go to variants of a single one.
        """
        names = [name for name in self.groups if name not in self.oversized and name != STANDARD]
        names.sort(key=lambda name: (self.needs[name].work, self._num_changes(name), name))
        for kinds in (("mechanism", "memory", "weights"), ("memory", "weights")):
            counts: Counter[tuple[object, ...]] = Counter()
            turn = {}
            for name in names:
                composition = self.candidates[name].composition
                kind = tuple(getattr(composition, kind) for kind in kinds)
                turn[name] = counts[kind]
                counts[kind] += 1
            names.sort(key=turn.__getitem__)  # a stable sort
        fits = self.available is None or self.needs[STANDARD].total <= self.available
        return [STANDARD, *names] if fits else names

    def ranks(self) -> dict[str, int]:
        """Return the ranks of what was measured, in their order; those that tie share one.

        The order is by the median of times over Standard's in the same round, then fewer changes,
        then name. A candidate ties with the first of its rank where quartiles of both overlap.
        """
        race = self.measured
        if not race.rounds:
            return {}
        times = {name: race.ratio(name) or race.times(name) for name in race.samples}
        changes = {name: self._num_changes(name) + (name != STANDARD) for name in times}
        ranks: dict[str, int] = {}
        leader = ""
        order = sorted(times, key=lambda name: (times[name].median, changes[name], name))
        for number, name in enumerate(order, start=1):
            if leader and overlap(times[leader], times[name]):
                ranks[name] = ranks[leader]
            else:
                leader, ranks[name] = name, number
        return ranks

    def promising(self) -> list[str]:
        """Return who is measured at other lengths: not slower than Standard, fastest first."""
        race = self.measured
        names = (name for name in self.ranks() if name != STANDARD and name in self.groups)
        return [
            name
            for name in names
            if name not in self.oversized and race.enough and not slower(race.ratio(name))
        ]

    def winner(self) -> str | None:
        """Return who is recommended: the fastest that keeps to every limit.

        Never what was measured slower than Standard, in writing or in reading; and Standard itself
        where nothing was measured faster beyond noise. Too few rounds recommend nothing.
        """
        race = self.measured
        if not race.enough:
            return None
        first = next((name for name in self.ranks() if self._qualifies(name, race)), None)
        if first is None or first == STANDARD or STANDARD not in race.samples:
            return first
        faster = race.ratio(first).high < 1.0
        return STANDARD if not faster and self._qualifies(STANDARD, race) else first

    def _qualifies(self, name: str, race: Race) -> bool:
        return (
            name not in self.oversized
            and name not in self.losses
            and self.limits.latency_excess(race.times(name)) is None
            and not slower(race.ratio(name))
            and not slower(race.first_ratio(name))
        )

    def places(self) -> tuple[Place, ...]:
        """Return every composition: ranked, ruled out, not measured, illegal."""
        ranks = self.ranks()
        illegal = (
            Place(name=name, rank=None, status="illegal", reason=reason)
            for name, reason in sorted(self.illegal.items())
        )
        return (*self._ranked(ranks), *self._unranked(ranks), *illegal)

    def place(self, name: str) -> Place:
        """Return the place of one composition."""
        return next(place for place in self.places() if place.name == name)

    def _ranked(self, ranks: dict[str, int]) -> Iterator[Place]:
        race = self.measured
        for name, rank in ranks.items():
            place = Place(
                name=name,
                rank=rank,
                status="ruled out" if name in self.oversized else "measured",
                reason="",
                **self._known(name),
                seconds=race.times(name),
                ratio=race.ratio(name),
                first_seconds=race.first(name),
                first_ratio=race.first_ratio(name),
                rounds=race.rounds,
                crossover=self._crossover(name),
            )
            tied = [other for other in ranks if ranks[other] == rank and other != name]
            yield replace(place, reason=reason(place, tied, self, enough=race.enough))

    def _unranked(self, ranks: dict[str, int]) -> Iterator[Place]:
        names = [name for name in self.candidates if name not in ranks]
        names.sort(key=lambda name: (name not in self.oversized, self.needs[name].work, name))
        for name in names:
            known = self._known(name)
            if name in self.oversized:
                status, why = "ruled out", self.oversized[name]
            elif name in self.race.failed:
                status, why = "not measured", f"not measured: {self.race.failed[name]}"
            else:
                status = "not measured"
                why = (
                    "not measured: the budget ended before its turn; by closed form "
                    f"{known['predicted']:.2f}x Standard's work"
                )
            yield Place(name=name, rank=None, status=status, reason=why, **known)

    def _known(self, name: str) -> dict[str, Any]:
        """Return the fields of a place that need no measurement."""
        composition, evidence = self.candidates[name].composition, self.evidence[name]
        sentences = "; ".join(one.sentence for one in evidence[:MOST_EVIDENCE])
        if len(evidence) > MOST_EVIDENCE:
            sentences += f"; and {len(evidence) - MOST_EVIDENCE} more, which --json lists"
        if not evidence:
            sentences = missing(composition, self.base.task, self.base.name)
            of_mechanism = self.evidence.get(composition.mechanism) if composition.changes else None
            if of_mechanism:
                sentences = (
                    f"none of the whole; {composition.mechanism} alone: {of_mechanism[0].sentence}"
                )
        return {
            "needs": self.needs[name],
            "predicted": self.needs[name].work / self.needs[STANDARD].work,
            "evidence": evidence,
            "evidence_told": "it is the yardstick" if name == STANDARD else sentences,
        }

    def _crossover(self, name: str) -> Crossover | None:
        first = next(first for first, names in self.groups.items() if name in names)
        if first not in self.by_length:
            return None
        return crossover({**self.by_length[first], self.base.length: self.race.ratio(first)})

    def _num_changes(self, name: str) -> int:
        return len(self.candidates[name].composition.changes)


MOST_EVIDENCE = 3  # comparisons of one mechanism, in sentences


def overlap(one: Times, other: Times) -> bool:
    """Return whether the quartiles of two overlap.

    Example:
        >>> overlap(Times(low=1, median=2, high=3), Times(low=3, median=4, high=5))
        True
    """
    return one.low <= other.high and other.low <= one.high


def slower(ratio: Times | None) -> bool:
    """Return whether a time is above Standard's beyond noise: three rounds of four."""
    return ratio is not None and ratio.low > 1.0


def crossover(ratios: dict[int, Times]) -> Crossover:
    """Return the crossover of times over Standard's at some lengths.

    Example:
        >>> slow, fast = Times(low=1.0, median=1.1, high=1.2), Times(low=0.8, median=0.9, high=0.9)
        >>> crossover({16: slow, 32: fast, 64: fast}).at
        32
    """
    at = None
    for length in sorted(ratios, reverse=True):
        if not ratios[length].high < 1.0:
            break
        at = length
    return Crossover(at=at, ratios=tuple(sorted(ratios.items())))
