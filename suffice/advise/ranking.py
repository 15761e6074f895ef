"""Who is faster than whom, and why each stands where it stands."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from suffice.advise.candidates import Candidate, Needs
from suffice.advise.evidence import Evidence, missing
from suffice.advise.race import FEWEST, Budget, Race, Sample, Tell, run
from suffice.advise.request import Base, Request, each
from suffice.measure.timing import Times
from suffice.records import encode

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


STANDARD = "standard"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a composition has to keep to.

    Args:
        memory: bytes; None = as many as there are.
        latency: seconds of a token or an input; None = any.
        unit: what times are for each of.
    """

    memory: int | None
    latency: float | None
    unit: str

    def over(self, needs: Needs) -> str | None:
        """Return why a candidate needs too much memory, None if it does not."""
        if self.memory is None or needs.total <= self.memory:
            return None
        return f"needs {sized(needs.total)} ({parts(needs)}), more than {sized(self.memory)}"

    def slow(self, seconds: Times) -> str | None:
        """Return why a candidate is too slow, None if it is not."""
        if self.latency is None or seconds.median <= self.latency:
            return None
        return f"{timed(seconds.median)} {each(self.unit)} are more than {timed(self.latency)}"


def ranked(names: list[str], race: Race, candidates: dict[str, Candidate]) -> dict[str, int]:
    """Return the places of what was measured, in their order; those that tie share one.

    The order is by the median of times over Standard's in the same round, then fewer changes, then
    name. A candidate ties with the first of its place where quartiles of both overlap.
    """
    times = {name: race.ratio(name) or race.times(name) for name in names}

    def key(name: str) -> tuple[float, int, str]:
        changes = len(candidates[name].composition.changes) + (name != STANDARD)
        return times[name].median, changes, name

    order = sorted(names, key=key)
    places: dict[str, int] = {}
    leader = ""
    for number, name in enumerate(order, start=1):
        if leader and overlap(times[leader], times[name]):
            places[name] = places[leader]
        else:
            leader, places[name] = name, number
    return places


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


def lost_quality(
    evidence: dict[str, tuple[Evidence, ...]], quality: float | None
) -> dict[str, str]:
    """Return who is shown to lose more than may be lost, where that was asked for."""
    if quality is None:
        return {}
    found = {}
    for name, known in evidence.items():
        against = [one.told for one in known if one.verdict == "does not suffice"]
        if against:
            found[name] = against[0]
    return found


def reason(
    place: Place, tied: list[str], limits: Limits, lost: dict[str, str], *, enough: bool
) -> str:
    """Return why a measured candidate stands where it stands.

    Args:
        place: with its times.
        tied: others of the same rank.
        limits: to keep to.
        lost: who is shown to lose too much quality, and why.
        enough: whether there were rounds enough to tell a difference from noise.
    """
    told = [f"{timed(place.seconds.median)} {each(limits.unit)}{_beside(place, enough=enough)}"]
    if enough and slower(place.first_ratio):
        told.append(f"not recommended: {reading(place)}")
    if tied and enough:
        told.append(f"ties with {_few(tied)}: their quartiles overlap")
    against = [limits.over(place.needs), limits.slow(place.seconds), lost.get(place.name)]
    if place.name in lost:
        against[-1] = f"loses too much: {lost[place.name]}"
    return "; ".join([*told, *filter(None, against)])


def reading(place: Place) -> str:
    """Return how long a candidate reads beside Standard."""
    one = place.first_ratio
    return (
        f"reading the input takes {one.median:.2f}x Standard's time (quartiles {one.low:.2f} to "
        f"{one.high:.2f})"
    )


def _beside(place: Place, *, enough: bool) -> str:
    """Return how a time stands to Standard's."""
    if place.name == STANDARD or place.ratio is None:
        return ""
    one = place.ratio
    if not enough:
        return f", {one.median:.2f}x Standard's, in too few rounds to tell from noise"
    told = f", {one.median:.2f}x Standard's (quartiles {one.low:.2f} to {one.high:.2f})"
    if slower(one):
        return f"{told}: slower"
    return told if one.high < 1.0 else f"{told}: no faster beyond noise"


def _few(names: list[str]) -> str:
    """Name two of them.

    Example:
        >>> _few(["a"]), _few(["a", "b", "c", "d"])
        ('a', 'a, b and 2 more')
    """
    if len(names) <= 2:  # noqa: PLR2004
        return " and ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"


def parts(needs: Needs) -> str:
    """Return what bytes are of."""
    told = [f"weights {sized(needs.weights)}"]
    if needs.state:
        told.append(f"state {sized(needs.state)}")
    return ", ".join([*told, f"activations {sized(needs.activations)}"])


def sized(nbytes: int) -> str:
    """Return bytes as words.

    Example:
        >>> sized(1_500_000_000), sized(2_000_000), sized(300)
        ('1.50 GB', '2.00 MB', '0.30 kB')
    """
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    size, unit = next((pair for pair in units if nbytes >= pair[0]), units[-1])
    return f"{nbytes / size:.2f} {unit}"


def timed(seconds: float) -> str:
    """Return a time as words.

    Example:
        >>> timed(0.0312), timed(2.5), timed(0.000045)
        ('31.2 ms', '2.5 s', '45 us')
    """
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    size, unit = next((pair for pair in units if seconds >= pair[0]), units[-1])
    return f"{seconds / size:.3g} {unit}"


def at_lengths(
    names: Sequence[str],
    lengths: Sequence[int],
    take: Callable[[str, int], Sample],
    budget: Budget,
    found: dict[str, dict[int, Times]],
    tell: Tell,
) -> None:
    """Measure times over the first candidate's at several lengths, the shortest first.

    Args:
        names: Standard, and who is held against it.
        lengths: to measure at.
        take: gives one sample of a candidate at a length.
        budget: of all that is measured.
        found: filled here, by name and length; what an interruption leaves in it can be used.
        tell: as of `run`.
    """
    for length in lengths:
        race = Race(baseline=names[0])

        def at(name: str, length: int = length) -> Sample:
            return take(name, length)

        def told(what: str, share: float, length: int = length) -> None:
            tell(f"{length} long: {what}", share)

        run(race, names, at, budget, most=FEWEST, tell=told)
        for name in names[1:]:
            if race.enough and race.samples.get(name) and (ratio := race.ratio(name)) is not None:
                found.setdefault(name, {})[length] = ratio


def crossed(ratios: dict[int, Times]) -> Crossover:
    """Return the crossover of times over Standard's at some lengths.

    Example:
        >>> slow, fast = Times(low=1.0, median=1.1, high=1.2), Times(low=0.8, median=0.9, high=0.9)
        >>> crossed({16: slow, 32: fast, 64: fast}).at
        32
    """
    at = None
    for length in sorted(ratios, reverse=True):
        if not ratios[length].high < 1.0:
            break
        at = length
    return Crossover(at=at, ratios=tuple(sorted(ratios.items())))


TOLD = 3  # comparisons of one mechanism, in words


@dataclass(kw_only=True)
class Found:
    """Candidates, what they need, what is known of them, and what was measured.

    Args:
        base: the model.
        limits: to keep to.
        candidates: that are legal, by name, Standard first.
        needs: of each.
        illegal: why others are not, by name.
        evidence: finished comparisons of each.
        lost: who is shown to lose more quality than may be lost, and why.
        measurable: bytes of the machine; what needs more is not measured.
        race: the measurements at the length asked for.
        by_length: times over Standard's at shorter lengths, by name.
    """

    base: Base
    limits: Limits
    candidates: dict[str, Candidate]
    needs: dict[str, Needs]
    illegal: dict[str, str]
    evidence: dict[str, tuple[Evidence, ...]]
    lost: dict[str, str]
    measurable: int | None
    race: Race = field(default_factory=lambda: Race(baseline=STANDARD))
    by_length: dict[str, dict[int, Times]] = field(default_factory=dict)

    @cached_property
    def over(self) -> dict[str, str]:
        """Who needs too much memory, and how much."""
        told = {name: self.limits.over(one) for name, one in self.needs.items()}
        return {name: why for name, why in told.items() if why is not None}

    @cached_property
    def twins(self) -> dict[str, list[str]]:
        """Names of what is the same, by the first of them."""
        first: dict[object, str] = {}
        found: dict[str, list[str]] = {}
        for name, one in self.candidates.items():
            found.setdefault(first.setdefault(one.same_as, name), []).append(name)
        return found

    def order(self) -> list[str]:
        """Return who is to be measured: Standard, then by closed form what promises most.

        Standard is measured wherever this machine holds it, as the yardstick. Of those that are the
        same one is measured. Packings take turns, and within each the mechanisms do: otherwise a
        short budget would go to variants of a single one.
        """
        chosen = [name for name in self.twins if name not in self.over and name != STANDARD]
        chosen.sort(key=lambda name: (self.needs[name].work, *self._plainer(name)))
        for kinds in (("mechanism", "memory", "weights"), ("memory", "weights")):
            turns: Counter[tuple[object, ...]] = Counter()
            turn = {}
            for name in chosen:
                one = self.candidates[name].composition
                kind = tuple(getattr(one, kind) for kind in kinds)
                turn[name] = turns[kind]
                turns[kind] += 1
            chosen.sort(key=turn.__getitem__)  # which keeps the order of equals
        held = self.measurable is None or self.needs[STANDARD].total <= self.measurable
        return [STANDARD, *chosen] if held else chosen

    def ranks(self) -> dict[str, int]:
        """Return the places of what was measured, in their order."""
        race = self.measured
        names = [name for name in self.candidates if race.samples.get(name)]
        return ranked(names, race, self.candidates) if race.rounds else {}

    def ahead(self) -> list[str]:
        """Return who is worth a look at other lengths: not slower than Standard, fastest first."""
        return [
            name
            for name in self.ranks()
            if name != STANDARD
            and name in self.twins
            and name not in self.over
            and self.measured.enough
            and not slower(self.measured.ratio(name))
        ]

    def winner(self) -> str | None:
        """Return who is recommended: the fastest that keeps to everything.

        Never what was measured slower than Standard, in writing or in reading; and Standard itself
        where nothing was measured faster beyond noise. Too few rounds recommend nothing.
        """
        race = self.measured
        if not race.enough:
            return None
        first = next((name for name in self.ranks() if self._serves(name, race)), None)
        if first is None or first == STANDARD or STANDARD not in race.samples:
            return first
        faster = race.ratio(first).high < 1.0
        return STANDARD if not faster and self._serves(STANDARD, race) else first

    def _serves(self, name: str, race: Race) -> bool:
        """Return whether a measured candidate keeps to every limit."""
        return (
            name not in self.over
            and name not in self.lost
            and self.limits.slow(race.times(name)) is None
            and not slower(race.ratio(name))
            and not slower(race.first_ratio(name))
        )

    def places(self) -> tuple[Place, ...]:
        """Return every composition: ranked, ruled out, not measured, illegal."""
        return (*self._measured(), *self._others())

    def _measured(self) -> Iterator[Place]:
        race, ranks = self.measured, self.ranks()
        for name, rank in ranks.items():
            place = Place(
                name=name,
                rank=rank,
                status="ruled out" if name in self.over else "measured",
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
            told = reason(place, tied, self.limits, self.lost, enough=race.enough)
            yield replace(place, reason=told)

    def _others(self) -> Iterator[Place]:
        """Give what has no rank."""
        ranks = self.ranks()
        rest = [name for name in self.candidates if name not in ranks]
        rest.sort(key=lambda name: (name not in self.over, self.needs[name].work, name))
        for name in rest:
            if name in self.over:
                status, why = "ruled out", self.over[name]
            else:
                status, why = "not measured", self._unmeasured(name)
            yield Place(name=name, rank=None, status=status, reason=why, **self._known(name))
        for name, why in sorted(self.illegal.items()):
            yield Place(name=name, rank=None, status="illegal", reason=why)

    def _unmeasured(self, name: str) -> str:
        if name in self.race.failed:
            return f"not measured: {self.race.failed[name]}"
        share = self._known(name)["predicted"]
        told = f"by closed form {share:.2f}x Standard's work" if share is not None else "last"
        return f"not measured: the budget ended before its turn; {told}"

    def _known(self, name: str) -> dict[str, object]:
        """Return what is known of a candidate without measuring."""
        one, evidence = self.candidates[name].composition, self.evidence[name]
        plain = self.needs.get(STANDARD)
        told = "; ".join(known.told for known in evidence[:TOLD])
        if len(evidence) > TOLD:
            told += f"; and {len(evidence) - TOLD} more, which --json lists"
        if not told:
            told = missing(one, self.base.task, self.base.name)
            alone = self.evidence.get(one.mechanism) if one.changes else None
            if alone:
                told = f"none of the whole; {one.mechanism} alone: {alone[0].told}"
        return {
            "needs": self.needs[name],
            "predicted": None if plain is None else self.needs[name].work / plain.work,
            "evidence": evidence,
            "evidence_told": "it is the yardstick" if name == STANDARD else told,
        }

    def _crossover(self, name: str) -> Crossover | None:
        """Return where a candidate, or its twin, becomes faster than Standard."""
        one = next(first for first, same in self.twins.items() if name in same)
        if one not in self.by_length:
            return None
        return crossed({**self.by_length[one], self.base.length: self.race.ratio(one)})

    def _plainer(self, name: str) -> tuple[int, str]:
        return len(self.candidates[name].composition.changes), name

    @property
    def measured(self) -> Race:
        """The race with the samples of those that are the same as one of them."""
        samples = {
            name: self.race.samples[first]
            for first, same in self.twins.items()
            if first in self.race.samples
            for name in same
        }
        return Race(baseline=STANDARD, samples=samples)
