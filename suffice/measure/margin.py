"""The margin as it is typed or passed: a number with or without a unit, read alike everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from suffice.errors import ConfigError

MARGIN = 0.01  # of test accuracy, a fraction: what may be lost unless the user says otherwise
SMALL_POINTS = 0.1  # on the command line; a smaller number looks like a fraction
LARGE_FRACTION = 0.5  # in Python; a larger number looks like points
_MARGIN = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?) ?(%|points?|nats?)?")


@dataclass(frozen=True)
class Margin:
    """A margin before the metric is known.

    With a unit it means the same everywhere: "1 point" or "1%" of a share, "0.02 nats" of a loss,
    "2%" of the value of any other metric. Without one it is points (hundredths of a nat of
    log-loss) on the command line and a fraction in Python; other metrics have their own unit.
    """

    size: float  # the number
    unit: str = ""  # "%", "point", "nat" or ""
    typed: bool = False  # whether it comes from the command line

    @classmethod
    def of(cls, value: float | str, *, typed: bool = False) -> Margin:
        """Read a margin.

        Example:
            >>> Margin.of("2%"), Margin.of(0.01)
            (Margin(size=2.0, unit='%', typed=False), Margin(size=0.01, unit='', typed=False))
        """
        match = _MARGIN.fullmatch(str(value).strip())
        if match is None:
            name = "--margin " if typed else "margin="
            raise ConfigError(
                f"{name}{value} is not a size; use a number of at least 0, with a unit if wanted, "
                "such as 1, '0.5 points', 2% or '0.02 nats'."
            )
        return cls(float(match[1]), (match[2] or "").rstrip("s"), typed)

    def for_metric(self, name: str, kind: str) -> tuple[float, bool]:
        """Return the margin of a kind of metric, and whether it is a fraction of the value.

        Args:
            name: metric, for messages.
            kind: see `suffice.measure.metrics.Metric`.
        """
        legal = {"share": ("%", "point"), "loss": ("nat",), "perplexity": ("%",), "ratio": ("%",)}
        if self.unit and self.unit not in legal.get(kind, ("%", "nat")):
            wanted = " or ".join(legal.get(kind, ("%", "nat")))
            raise ConfigError(f"margin of {name}: the unit is {self.unit}; use {wanted}.")
        if kind == "value":
            return (self.size / 100, True) if self.unit == "%" else (self.size, False)
        if not self.unit:
            self._ask(name, kind)
        scale = 1.0 if self.unit == "nat" or not (self.unit or self.typed) else 100.0
        return self.size / scale, False

    def _ask(self, name: str, kind: str) -> None:
        """Refuse a number that is probably meant in the unit of the other door."""
        size, unit = self.size, {"share": "points", "perplexity": "%"}.get(kind, "nats")
        small = self.typed and 0.0 < size < SMALL_POINTS
        if small or (not self.typed and LARGE_FRACTION <= size < 1.0 and kind == "share"):
            fraction, other = (size, size / 100) if kind == "loss" else (100 * size, size)
            raise ConfigError(
                f"margin {size:g} of {name}: use '{fraction:g} {unit}' if the fraction {size:g} is "
                f"meant, else '{other:g} {unit}'."
            )
