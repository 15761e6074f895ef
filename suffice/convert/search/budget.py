"""What a plan may cost: words such as "state<=25%, latency<=0.8x"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from suffice.errors import ConfigError, unknown

SHARES = {"%": 0.01, "x": 1.0}
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
UNITS: dict[str, dict[str, float]] = {
    "state": BYTES,
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "parameters": {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9},
    "loss": {"": 1.0},
    "divergence": {"": 1.0},
}
"""What can be bounded, and the units of an absolute bound."""
WORD = re.compile(r"([a-z]+)\s*<=\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([%A-Za-z]*)")
GRAMMAR = (
    "write bounds such as state<=25%, latency<=0.8x, parameters<=90%, loss<=1.05x or "
    "divergence<=0.01, with commas between them"
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One bound.

    Args:
        name: "state" (bytes that attention keeps of a text), "latency" (of the step of one token),
            "parameters" (of the model), "loss" (on held-out text, nats per token) or "divergence"
            (from the model as it is, nats per token).
        value: of the source's if relative, else bytes, seconds, numbers or nats.
        relative: whether the bound is a share of what the source has.
    """

    name: str
    value: float
    relative: bool

    def of(self, source: float) -> float:
        """Return the bound in absolute terms, for what the source has."""
        return self.value * source if self.relative else self.value

    def __str__(self) -> str:
        """Return the bound in words."""
        return f"{self.name}<={told(self.name, self.value, relative=self.relative)}"


def budget_of(text: str) -> tuple[Limit, ...]:
    """Return the bounds that words name.

    Raises:
        ConfigError: for words that are not legal, naming those that are.

    Example:
        >>> [str(limit) for limit in budget_of("state<=25%, latency <= 0.8x")]
        ['state<=25%', 'latency<=80%']
    """
    limits = [_limit(word.strip(), text) for word in text.split(",")]
    names = [limit.name for limit in limits]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"budget {text!r:.80} bounds {twice[0]} twice; give one bound of it.")
    return tuple(limits)


def told(name: str, value: float, *, relative: bool) -> str:
    """Return a value as one writes it in a budget.

    Example:
        >>> told("state", 0.25, relative=True), told("latency", 0.0021, relative=False)
        ('25%', '2.1ms')
    """
    if relative:
        return f"{100 * value:.4g}%"
    units = UNITS[name]
    fitting = [(size, unit) for unit, size in units.items() if size <= value and "i" not in unit]
    size, unit = max(fitting, default=min((size, unit) for unit, size in units.items()))
    return f"{value / size:.4g}{unit}"


def _limit(word: str, text: str) -> Limit:
    found = WORD.fullmatch(word)
    if found is None:
        raise ConfigError(f"budget {text!r:.80} is not understood at {word!r:.40}; {GRAMMAR}.")
    name, number, unit = found[1], float(found[2]), found[3]
    if name not in UNITS:
        raise unknown("budget", name, UNITS)
    if not 0.0 < number < float("inf"):
        raise ConfigError(f"budget {word!r}: give a number above 0.")
    if unit in SHARES and name != "divergence":
        return Limit(name=name, value=number * SHARES[unit], relative=True)
    if unit not in UNITS[name]:
        shares = [] if name == "divergence" else list(SHARES)
        legal = ", ".join(one or "none" for one in (*shares, *UNITS[name]))
        raise ConfigError(
            f"budget {word!r}: {name} has no unit {unit or 'none'!r}; legal: {legal}."
        )
    return Limit(name=name, value=number * UNITS[name][unit], relative=False)
