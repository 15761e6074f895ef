"""From which length on a mechanism is faster than Standard, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffice.advise.advice import Crossover
from suffice.advise.race import FEWEST, Budget, Race, Tell, run
from suffice.advise.sample import Sample
from suffice.measure.timing import Times


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
