"""What the benchmarks share: a gate that refuses wrong results, and a table of ratios."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suffice.utils.machine import machine_facts, software_versions

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
CONSOLE = Console(width=110)
WIDE = Console(width=132)


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


def peer_versions() -> dict[str, str]:
    """Return the installed version of each package that pyproject.toml names for benchmarks."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    versions = {}
    for requirement in groups["bench"]:
        name = re.match(r"[\w.-]+", requirement)[0]
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def print_machine() -> None:
    """Say where the figures come from, and whether the machine was busy."""
    facts = {**software_versions(), **machine_facts(), **peer_versions()}
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One row of a table whose rows measure different things, as text.

    Args:
        case: what was computed.
        op: that computed it for us.
        peer: against whom.
        ours: our median.
        theirs: the peer's.
        value: what is held against the reach.
        reach: what it should be.
        standing: reached, MISSED, or why there is no figure.
    """

    case: str
    op: str
    peer: str
    ours: str = ""
    theirs: str = ""
    value: str = ""
    reach: str = ""
    standing: str = ""

    def told(self, standing: str, **columns: str) -> Outcome:
        """Return the row with this standing and these columns."""
        return replace(self, standing=standing, **columns)

    @property
    def failed(self) -> bool:
        """True if a side computed something wrong."""
        return "WRONG" in self.standing


def print_outcomes(title: str, outcomes: Iterable[Outcome]) -> None:
    """Print the rows; a complaint takes a line of its own below."""
    table = Table(title=title, title_justify="left")
    for column in ("case", "op", "peer", "ours", "peer's", "found", "reach", ""):
        aligned = "left" if column in ("case", "op", "peer", "") else "right"
        table.add_column(column, justify=aligned, overflow="fold")
    notes = []
    for row in outcomes:
        short, _, note = row.standing.partition(": ")
        if note:
            notes.append(f"{row.case}, {row.peer}: {short}: {note}")
        cells = (row.case, row.op, row.peer, row.ours, row.theirs, row.value, row.reach, short)
        table.add_row(*map(escape, cells))
    WIDE.print(table)
    for note in notes:
        WIDE.print(note, markup=False, highlight=False)
