"""Ranks candidates by measured time, and rules out those beyond a limit."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any

from suffice.advise.candidates import Candidate
from suffice.advise.comparison import Trial, missing
from suffice.advise.evidence import SUFFICES, Evidence, Scope
from suffice.advise.needs import Needs
from suffice.advise.parts import Prediction, known_by
from suffice.advise.race import Race
from suffice.advise.request import Base, Request, each
from suffice.advise.text import describe_bytes, format_bytes, format_seconds, reason
from suffice.measure.plan import MARGIN
from suffice.measure.timing import Times
from suffice.models.composition import STANDARD
from suffice.records import encode

MOST_EVIDENCE = 3  # comparisons of one mechanism, in sentences


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The length from which a candidate is faster than Standard.

    Args:
        at: the shortest measured length from which it always is; None = there is none.
        ratios: time over Standard's by length, median and quartiles over the rounds.
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
        reason: why it has this place, in a sentence.
        needs: bytes and work in closed form; None if illegal.
        predicted: work over Standard's; None if illegal.
        seconds: of a token or an input, median and quartiles over the rounds.
        ratio: `seconds` over Standard's of the same round.
        first_seconds: of reading the input before the first token, the median.
        first_ratio: the same over Standard's of the same round, median and quartiles.
        rounds: number of samples.
        crossover: comparison at shorter lengths; None = measured at the requested length only.
        evidence: finished comparisons of quality.
        recall: those on tasks of recall, where recall is asked for.
        prediction: what it loses on a task nobody tried, by its parts; None = a part was never
            tried near what is asked.
        evidence_told: all of these in sentences, or the command that would produce evidence.
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
    recall: tuple[Evidence, ...] = ()
    prediction: Prediction | None = None
    evidence_told: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The recommendation, and everything it is based on.

    Args:
        request: the task and its limits.
        model: name of the model whose sizes were measured.
        length: tokens or patches of an input.
        unit: "token" or "input", which times are for.
        device: "cpu" or "cuda".
        winner: name of the recommended composition; None = none is recommended.
        known: whether comparisons near what is asked show that it suffices; of Standard, that
            nothing untried is faster.
        trial: the comparison that would decide whether the fastest suffices; None = it is known,
            or there is no such command.
        sentence: the recommendation.
        notes: further sentences.
        places: every composition: ranked, ruled out, not measured, illegal.
        python: lines that build and use the recommended model.
        cli: commands that do the same; () if none can.
        machine: facts about the machine.
        versions: versions of the software.
        seconds: total time of the advice.
        interrupted: whether measuring was stopped early.
    """

    request: Request
    model: str
    length: int
    unit: str
    device: str
    winner: str | None
    known: bool
    trial: Trial | None
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
        """Return plain data."""
        return encode(dataclasses.asdict(self))


@dataclass(kw_only=True)
class Study:
    """The legal candidates, their needs and evidence, and their measurements, by name."""

    request: Request
    base: Base
    asked: Scope
    candidates: dict[str, Candidate]  # Standard first
    needs: dict[str, Needs]
    illegal: dict[str, str]  # reasons
    evidence: dict[str, tuple[Evidence, ...]]
    recall: dict[str, tuple[Evidence, ...]] | None  # on tasks of recall; None = not asked for
    predictions: dict[str, Prediction | None]
    losses: dict[str, str]  # sentences about candidates that lose more than is acceptable
    available: int | None  # bytes of the machine; Standard is not measured if it needs more
    trial: Trial | None = None  # of `beside()`
    race: Race = field(default_factory=lambda: Race(baseline=STANDARD))
    by_length: dict[str, dict[int, Times]] = field(default_factory=dict)  # over Standard's

    @property
    def memory(self) -> int | None:
        """The limit in bytes: the request's or the machine's; None = unknown."""
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
        """Return the names to measure: Standard if it fits the machine, then least work first.

        Packings take turns, and mechanisms within each: otherwise a short budget would go to
        variants of a single one. What is known to lose too much comes last.
        """
        names = [
            name
            for name, first in self.representatives.items()
            if name == first != STANDARD and name not in self.oversized
        ]
        names.sort(key=lambda name: (self.needs[name].work, self._num_changes(name), name))
        for fields in (("mechanism", "memory", "weights"), ("memory", "weights")):
            kind_of = attrgetter(*fields)
            counters: dict[object, Iterator[int]] = defaultdict(count)
            kinds = {name: kind_of(self.candidates[name].composition) for name in names}
            turns = {name: next(counters[kind]) for name, kind in kinds.items()}
            names.sort(key=turns.__getitem__)  # a stable sort
        names.sort(key=self.losses.__contains__)
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

        Standard also wins where none of them is clearly faster. Where Standard does not keep to the
        limits and nothing else is known to suffice, the safest wins. None after too few rounds. A
        candidate slower than Standard never wins.
        """
        names = self.qualifying()
        known = [name for name in names if self.suffices(name)]
        if not known:
            return max(names, key=self._safety, default=None)
        first = known[0]
        if first == STANDARD or STANDARD not in known:
            return first
        return first if self.measured.ratio(first).high < 1.0 else STANDARD

    def _safety(self, name: str) -> tuple[int, float]:
        """Return how safe a candidate is: the comparisons all of which it suffices in, then parts.

        Without an interval of its parts nothing is known of it.
        """
        found, prediction = [*self.evidence[name], *self.recalled(name)], self.predictions[name]
        everywhere = len(found) if all(one.verdict == SUFFICES for one in found) else 0
        low = None if prediction is None else prediction.low
        return everywhere, -inf if low is None else low

    def beside(self) -> str | None:
        """Return the fastest candidate, if it is not known to suffice: what is worth comparing."""
        fastest = self.fastest()
        return None if fastest is None or self.suffices(fastest) else fastest

    def fastest(self) -> str | None:
        """Return the fastest candidate within every limit, whatever is known of its quality."""
        race = self.measured
        names = self.qualifying()
        first = next(iter(names), None)
        if first is None or STANDARD not in names:
            return first
        return first if first == STANDARD or race.ratio(first).high < 1.0 else STANDARD

    def qualifying(self) -> list[str]:
        """Return the measured candidates that keep to every limit, best first."""
        race = self.measured
        return [name for name in self.ranks() if race.enough and self._qualifies(name, race)]

    def suffices(self, name: str) -> bool:
        """Return whether a candidate is known to suffice; Standard does.

        That takes a near comparison, or a prediction whose whole interval is within the margin; and
        where recall is asked for, a near comparison of recall as well.
        """
        recalls = self.recall is None or any(one.shows for one in self.recall[name])
        return name == STANDARD or (recalls and bool(self.known_by(name)))

    def known_by(self, name: str) -> str:
        """Return by what a candidate is known to suffice, "" = it is not; packing is no part."""
        packed = self.candidates[name].composition.of_use
        prediction = None if packed else self.predictions[name]
        return known_by(self.evidence[name], prediction, self.margin)

    @property
    def margin(self) -> float:
        """The loss of accuracy that is acceptable, a fraction."""
        return MARGIN if self.request.quality is None else self.request.quality

    def recalled(self, name: str) -> tuple[Evidence, ...]:
        """Return the comparisons of recall, where it is asked for."""
        return () if self.recall is None else self.recall[name]

    def is_known(self, winner: str | None) -> bool:
        """Return whether the recommendation rests on comparisons, or nothing untried is faster."""
        if winner == STANDARD:
            return self.beside() is None
        return winner is not None and self.suffices(winner)

    def shown(self, name: str) -> list[Evidence]:
        """Return the near comparisons that show that a candidate suffices."""
        return [one for one in self.evidence[name] if one.shows]

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
        """Return the fields of a place that need no measurement."""
        evidence, prediction = self.evidence[name], self.predictions[name]
        return {
            "needs": self.needs[name],
            "predicted": self.needs[name].work / self.needs[STANDARD].work,
            "evidence": evidence,
            "recall": self.recalled(name),
            "prediction": prediction,
            "evidence_told": "it is the yardstick" if name == STANDARD else self._told(name),
        }

    def _told(self, name: str) -> str:
        """Return what is known of a candidate's quality, or the command that would tell it."""
        composition, evidence = self.candidates[name].composition, self.evidence[name]
        alone = self.evidence.get(composition.mechanism) if composition.changes else None
        said = [one.sentence for one in evidence[:MOST_EVIDENCE]]
        if len(evidence) > MOST_EVIDENCE:
            said.append(f"and {len(evidence) - MOST_EVIDENCE} more, which --json lists")
        if not evidence and alone:
            said.append(f"none of the whole; {composition.mechanism} alone: {alone[0].sentence}")
        said += [f"recall: {one.sentence}" for one in self.recalled(name)[:1]]
        if not said:
            said.append(missing(composition, self.base, self.asked))
        if (prediction := self.predictions[name]) is not None:
            packed = ", before packing" if composition.of_use else ""
            said.append(f"predicted {prediction.sentence}{packed}")
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
