"""What is known of the candidates of a request: needs, times, evidence, and their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

from suffice.measure.advise.evidence import Evidence, Library, Scope, deciding, suffices, trained
from suffice.measure.advise.request import (
    Base,
    Candidate,
    Needs,
    Request,
    describe_bytes,
    each,
    format_bytes,
    format_seconds,
)
from suffice.measure.advise.timing import DecidingComparison, Race
from suffice.measure.timing import Times
from suffice.models.composition import STANDARD, Composition

MAX_EVIDENCE = 3  # comparisons of one mechanism, in sentences


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The length from which a candidate is faster than Standard."""

    at: int | None  # the shortest measured length from which it always is; None if there is none
    # time over Standard's by length, median and quartiles over the rounds
    ratios: tuple[tuple[int, Times], ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One composition and its place."""

    name: str  # the composition, see `Composition`
    rank: int | None  # rank, from 1; candidates whose times overlap share one. None if not ranked.
    status: str  # "measured", "ruled out", "illegal" or "not measured"
    reason: str  # why it has this place, in a sentence
    needs: Needs | None = None  # bytes and work in closed form; None if illegal
    predicted: float | None = None  # work over Standard's; None if illegal
    seconds: Times | None = None  # seconds per token or input, median and quartiles over the rounds
    ratio: Times | None = None  # `seconds` over Standard's of the same round
    first_seconds: float | None = None  # median seconds of reading the input (prefill)
    # prefill time over Standard's of the same round, median and quartiles
    first_ratio: Times | None = None
    rounds: int = 0  # number of samples
    # comparison at shorter lengths; None if measured at the requested length only
    crossover: Crossover | None = None
    evidence: tuple[Evidence, ...] = ()  # finished comparisons of quality
    evidence_told: str = ""  # sentences about its quality


@dataclass(kw_only=True)
class Study:
    """The legal candidates, their needs and evidence, and their measurements, by name."""

    request: Request
    base: Base
    asked: Scope
    candidates: dict[str, Candidate]  # Standard first
    needs: dict[str, Needs]
    illegal: dict[str, str]  # reasons
    library: Library
    evidence: dict[str, tuple[Evidence, ...]]
    losses: dict[str, str]  # sentences about candidates that lose more than is acceptable
    available: int | None  # bytes of the machine; Standard is not measured if it needs more
    trial: DecidingComparison | None = None  # of `untried()`
    race: Race = field(default_factory=lambda: Race(baseline=STANDARD))
    by_length: dict[str, dict[int, Times]] = field(default_factory=dict)  # over Standard's

    @property
    def memory(self) -> int | None:
        """The limit in bytes: the request's or the machine's; None if unknown."""
        return self.request.memory or self.available

    @cached_property
    def oversized(self) -> dict[str, str]:
        """Why candidates need too much memory, by name."""
        return {
            name: f"needs {format_bytes(needs.total)} ({describe_bytes(needs)}), more than "
            f"{format_bytes(self.memory)}"
            for name, needs in self.needs.items()
            if self.memory is not None and needs.total > self.memory
        }

    def latency_excess(self, seconds: Times) -> str | None:
        """Return why a candidate is too slow, None if it is not."""
        latency, unit = self.request.latency, each(self.request.unit)
        if latency is None or seconds.median <= latency:
            return None
        return f"{format_seconds(seconds.median)} {unit} are more than {format_seconds(latency)}"

    @cached_property
    def representatives(self) -> dict[str, str]:
        """For each candidate the first one that computes the same thing; only that is measured."""
        first: dict[object, str] = {}
        return {name: first.setdefault(c.identity, name) for name, c in self.candidates.items()}

    @property
    def measured(self) -> Race:
        """The race in which candidates have the samples of their representatives."""
        samples = {
            name: self.race.samples[first]
            for name, first in self.representatives.items()
            if first in self.race.samples
        }
        return Race(baseline=STANDARD, samples=samples)

    def order(self) -> list[str]:
        """Return the names to measure: Standard if it fits the machine, then the others.

        What is known to suffice comes first, what is known to lose too much last. Between them
        trained and packed compositions take turns, numbers of changes within each, and packings and
        mechanisms within those, by least work: a short budget is spread from published mechanisms
        to the most changed.
        """
        names = [
            name
            for name, first in self.representatives.items()
            if name == first != STANDARD and name not in self.oversized
        ]
        names.sort(key=lambda name: (self.needs[name].work, name))
        compositions = {name: self.candidates[name].composition for name in names}
        changes = {n: (bool(c.of_use), len(c.changes)) for n, c in compositions.items()}
        packing = {n: (changes[n], c.memory, c.weights) for n, c in compositions.items()}
        kinds = {n: (packing[n], c.mechanism) for n, c in compositions.items()}
        packed = {n: of_use for n, (of_use, _) in changes.items()}
        for kind in (kinds, packing, changes, packed):
            counters: dict[object, Iterator[int]] = defaultdict(count)
            turns = {name: next(counters[kind[name]]) for name in names}
            names.sort(key=lambda name: (turns[name], changes[name]))
        names.sort(key=lambda name: (name in self.losses, not self.suffices(name)))
        fits = self.available is None or self.needs[STANDARD].total <= self.available
        return [STANDARD, *names] if fits else names

    def ranks(self) -> dict[str, int]:
        """Return the ranks of the measured candidates, best first; those that tie share one.

        What is shown to lose too much comes last. The order is by the median ratio to Standard,
        then fewer changes, then name. A candidate ties with the first of its rank where their
        quartiles overlap.
        """
        race = self.measured
        if not race.rounds:
            return {}
        times = {name: race.ratio(name) or race.times(name) for name in race.samples}
        changes = {name: self._num_changes(name) + (name != STANDARD) for name in times}
        ranks: dict[str, int] = {}
        leader = ""
        loses = {name: name in self.losses for name in times}
        order = sorted(
            times, key=lambda name: (loses[name], times[name].median, changes[name], name)
        )
        for number, name in enumerate(order, start=1):
            ties = leader and loses[leader] == loses[name]
            if ties and overlap(times[leader], times[name]):
                ranks[name] = ranks[leader]
            else:
                leader, ranks[name] = name, number
        return ranks

    def promising(self) -> list[str]:
        """Return the candidates to measure at shorter lengths: none slower than Standard."""
        race = self.measured
        return [
            name
            for name in self.ranks()
            if self.representatives[name] == name != STANDARD and name not in self.oversized
            if race.enough and not slower(race.ratio(name))
        ]

    def winner(self) -> str | None:
        """Return the fastest candidate within every limit that is known to suffice, or Standard.

        Standard also wins where none of them is clearly faster, and where too few rounds can tell:
        it needs no evidence. Where it does not keep to the limits and nothing else is known to
        suffice, the least changed wins. A candidate slower than Standard never wins.
        """
        if not self.measured.enough:
            return STANDARD if self._standard_fits() else None
        names = self.qualifying()
        known = [name for name in names if self.suffices(name)]
        if not known:
            return min(names, key=self._changed, default=None)
        first = known[0]
        return first if first == STANDARD or self._faster(first) else STANDARD

    def _standard_fits(self) -> bool:
        samples = STANDARD in self.measured.samples
        slow = not samples or self.latency_excess(self.measured.times(STANDARD)) is not None
        return STANDARD not in self.oversized and not (self.request.latency and slow)

    def _changed(self, name: str) -> tuple[bool, int]:
        mechanism = self.candidates[name].composition.mechanism
        return mechanism != STANDARD, self._num_changes(name)

    def _faster(self, name: str) -> bool:
        race = self.measured
        standard = STANDARD in race.samples and self._qualifies(STANDARD, race)
        ratio = race.ratio(name)
        return not standard or (ratio is not None and ratio.high < 1.0)

    def untried(self, *, packed: bool = False) -> str | None:
        """Return the fastest candidate above the winner that is not known to suffice.

        Args:
            packed: whether it is to be one that is packed after training, about which no comparison
                decides, or one about which a comparison does.
        """
        winner, same = self.winner(), self.representatives
        for name in self.qualifying():
            if winner and same[name] == same[winner] and (self.suffices(name) or packed):
                return None
            of_use = bool(self.candidates[name].composition.of_use)
            if of_use is packed and not self.suffices(name) and self._faster(name):
                return winner if winner and same[name] == same[winner] else name
        return None

    def qualifying(self) -> list[str]:
        """Return the measured candidates that keep to every limit, best first."""
        race = self.measured
        return [name for name in self.ranks() if race.enough and self._qualifies(name, race)]

    def suffices(self, name: str) -> bool:
        """Return whether a candidate is known to suffice; Standard is."""
        return name == STANDARD or suffices(self.evidence[name], recall=self.request.recall)

    def is_known(self, winner: str | None) -> bool:
        """Return whether the recommendation rests on comparisons, or nothing untried is faster."""
        if winner == STANDARD:
            return self.measured.enough and self.untried() is None
        return winner is not None and self.suffices(winner)

    def _qualifies(self, name: str, race: Race) -> bool:
        return (
            name not in self.oversized
            and name not in self.losses
            and self.latency_excess(race.times(name)) is None
            and not slower(race.ratio(name))
            and not slower(race.first_ratio(name))
        )

    def places(self) -> tuple[Place, ...]:
        """Return the place of every composition."""
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
                **self._unmeasured_fields(name),
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
        names = list(self.candidates.keys() - ranks.keys())
        names.sort(key=lambda name: (name not in self.oversized, self.needs[name].work, name))
        for name in names:
            fields = self._unmeasured_fields(name)
            if name in self.oversized:
                status, why = "ruled out", self.oversized[name]
            elif name in self.race.failed:
                status, why = "not measured", f"not measured: {self.race.failed[name]}"
            else:
                status = "not measured"
                why = (
                    "not measured: the budget ended before its turn; by closed form "
                    f"{fields['predicted']:.2f}x Standard's work"
                )
            yield Place(name=name, rank=None, status=status, reason=why, **fields)

    def _unmeasured_fields(self, name: str) -> dict[str, Any]:
        return {
            "needs": self.needs[name],
            "predicted": self.needs[name].work / self.needs[STANDARD].work,
            "evidence": self.evidence[name],
            "evidence_told": "it is the yardstick" if name == STANDARD else self._told(name),
        }

    def _told(self, name: str) -> str:
        composition, evidence = self.candidates[name].composition, self.evidence[name]
        said = [one.sentence for one in evidence[:MAX_EVIDENCE]]
        if len(evidence) > MAX_EVIDENCE:
            said.append(f"and {len(evidence) - MAX_EVIDENCE} more, which --json lists")
        if not deciding(evidence):
            said.insert(0, "no near comparison")
            parts = (trained(composition), Composition(mechanism=composition.mechanism))
            alone = ((part, deciding(self.library.find(part))) for part in dict.fromkeys(parts))
            said += [f"{part.name}: {near[0].sentence}" for part, near in alone if near][:1]
        if (bits := composition.weights) is not None:
            said.append(f"`suffice quantise DIR --bits {bits}` measures what a trained model loses")
        return "; ".join(said)

    def _crossover(self, name: str) -> Crossover | None:
        first = self.representatives[name]
        if first not in self.by_length:
            return None
        return crossover({**self.by_length[first], self.base.length: self.race.ratio(first)})

    def _num_changes(self, name: str) -> int:
        return len(self.candidates[name].composition.changes)


def overlap(a: Times, b: Times) -> bool:
    """Return whether the quartiles of two times overlap."""
    return a.low <= b.high and b.low <= a.high


def slower(ratio: Times | None) -> bool:
    """Return whether the lower quartile of a ratio to Standard is above 1."""
    return ratio is not None and ratio.low > 1.0


def crossover(ratios: dict[int, Times]) -> Crossover:
    """Return the crossover of ratios to Standard by length."""
    at = None
    for length in sorted(ratios, reverse=True):
        if not ratios[length].high < 1.0:
            break
        at = length
    return Crossover(at=at, ratios=tuple(sorted(ratios.items())))


def reason(place: Place, tied: list[str], study: Study, *, enough: bool) -> str:
    """Return why a measured candidate has its place.

    `tied` names the others of its rank; `enough` says whether the rounds suffice for a verdict.
    """
    seconds = f"{format_seconds(place.seconds.median)} {each(study.request.unit)}"
    clauses = [seconds + _compared(place, enough=enough)]
    first = place.first_ratio
    if enough and first is not None and first.low > 1.0:
        clauses.append(
            f"not recommended: reading the input takes {first.median:.2f}x Standard's time "
            f"{quartiles(first)}"
        )
    if tied and enough:
        names = " and ".join(tied)
        if len(tied) > 2:  # noqa: PLR2004
            names = f"{tied[0]}, {tied[1]} and {len(tied) - 2} more"
        clauses.append(f"ties with {names}: their quartiles overlap")
    loss = study.losses.get(place.name)
    excesses = (
        study.oversized.get(place.name),
        study.latency_excess(place.seconds),
        None if loss is None else f"loses too much: {loss}",
    )
    return "; ".join([*clauses, *filter(None, excesses)])


def _compared(place: Place, *, enough: bool) -> str:
    ratio = place.ratio
    if place.name == STANDARD or ratio is None:
        return ""
    median = f", {ratio.median:.2f}x Standard's"
    if not enough:
        return f"{median}, in too few rounds to tell from noise"
    verdict = ": slower" if ratio.low > 1.0 else ""
    if not verdict and ratio.high >= 1.0:
        verdict = ": no faster beyond noise"
    return f"{median} {quartiles(ratio)}{verdict}"


def quartiles(ratio: Times) -> str:
    """Return the quartiles of a ratio as text."""
    return f"(quartiles {ratio.low:.2f} to {ratio.high:.2f})"
