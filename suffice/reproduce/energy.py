"""Energy of the processor, from the counters that Linux shows where the machine has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
ABSENT = "this system shows no counter of energy that may be read (RAPL)"


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One counter of a processor package; it starts again from 0 at its end.

    Args:
        path: of its value, in microjoules.
        end: its highest value, in microjoules.
    """

    path: Path
    end: int

    def read(self) -> int:
        """Return its value, in microjoules."""
        return int(self.path.read_text())


@dataclass(frozen=True, kw_only=True)
class Meter:
    """All counters of the machine's packages.

    Args:
        counters: one for each package.
    """

    counters: tuple[Counter, ...]

    def read(self) -> tuple[int, ...]:
        """Return the value of every counter, in microjoules."""
        return tuple(counter.read() for counter in self.counters)

    def since(self, before: tuple[int, ...]) -> float:
        """Return the joules used since the counters were read."""
        used = 0
        for counter, then, now in zip(self.counters, before, self.read(), strict=True):
            used += now - then if now >= then else now - then + counter.end
        return used / 1e6


def meter(folder: Path = POWERCAP) -> Meter | None:
    """Return the machine's meter, None where there is none that may be read.

    Args:
        folder: where the system shows its counters.
    """
    counters = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") > 1:
            continue  # a part of a package, which the package's own counter contains
        try:
            counter = Counter(
                path=zone / "energy_uj", end=int((zone / "max_energy_range_uj").read_text())
            )
            counter.read()
        except (OSError, ValueError):
            continue
        counters.append(counter)
    return Meter(counters=tuple(counters)) if counters else None
