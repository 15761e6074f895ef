"""All that is found out about the candidates while an advice is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from suffice.advise.advice import Crossover, Place
from suffice.advise.base import Base
from suffice.advise.candidates import Candidate
from suffice.advise.crossover import crossed
from suffice.advise.evidence import Evidence, missing
from suffice.advise.needs import Needs
from suffice.advise.race import Race
from suffice.advise.rank import STANDARD, Limits, ranked, reason, slower
from suffice.measure.timing import Times

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
