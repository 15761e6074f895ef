"""What the benchmarks share: a gate that refuses wrong results, and a table of ratios."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from suffice.measure.machine import machine_facts, software_versions

CONSOLE = Console(width=110)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: our time over the peer's, and what it should reach."""

    case: str
    peer: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    reach: float | None = None

    @property
    def ratio(self) -> float:
        """Median over rounds of our time over the peer's."""
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))


def gate(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Refuse to time a case whose result is wrong."""
    error = (got.double() - want.double()).abs().max().item()
    if not error <= tolerance:
        raise SystemExit(f"{name}: off by {error:.1e}; no speed is printed for a wrong result.")


def print_machine() -> None:
    """Say where the figures come from, and whether the machine was busy."""
    facts = {**software_versions(), **machine_facts()}
    CONSOLE.print(", ".join(f"{k} {v}" for k, v in facts.items()), highlight=False)
    load = os.getloadavg()[0]
    if load > 0.5 * (os.cpu_count() or 1):
        CONSOLE.print(f"load average {load:.1f}: the machine was busy, trust ratios only")


def print_rows(title: str, rows: list[Row]) -> None:
    """Print medians, ratios and what was to be reached."""
    table = Table(title=title, title_justify="left")
    for column in ("case", "peer", "ours ms", "peer ms", "ratio", "reach", ""):
        table.add_column(column, justify="left" if column in ("case", "peer", "") else "right")
    for row in rows:
        met = "" if row.reach is None else ("reached" if row.ratio <= row.reach else "MISSED")
        table.add_row(
            row.case,
            row.peer,
            f"{1e3 * statistics.median(row.ours):.3f}",
            f"{1e3 * statistics.median(row.theirs):.3f}",
            f"{row.ratio:.2f}",
            "" if row.reach is None else f"{row.reach:.2f}",
            met,
        )
    CONSOLE.print(table)
