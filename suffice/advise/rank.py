"""Who is faster than whom, and why each stands where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.advise.advice import Place
from suffice.advise.candidates import Candidate
from suffice.advise.evidence import Evidence
from suffice.advise.needs import Needs
from suffice.advise.race import Race
from suffice.advise.request import each
from suffice.measure.timing import Times

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
