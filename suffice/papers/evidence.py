"""docs/evidence.md: every claim of the papers with its verdict, and the trainings behind it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from suffice.errors import DataError
from suffice.files import write_atomic
from suffice.papers import conversion, counted_claims, trained_claims
from suffice.papers.edge import published_edge
from suffice.papers.finding import CONFIRMED, NOT_CONFIRMED, NOT_TESTED, Finding
from suffice.papers.results import Published, path_of, published
from suffice.papers.rows import machine_line
from suffice.papers.tables import TABLES, Table, table


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something the papers say."""

    id: int
    where: str
    claim: str
    check: str
    args: dict[str, Any]

    def examine(self) -> Finding:
        """Check the claim with the results that are published now."""
        module = counted_claims if hasattr(counted_claims, self.check) else trained_claims
        return getattr(module, self.check)(**self.args)


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim, by number.

    Example:
        >>> len(claims()), claims()[10].check
        (40, 'averaged')
    """
    text = resources.files("suffice.papers").joinpath("claims.json").read_text("utf-8")
    return tuple(Claim(**fields) for fields in json.loads(text))


HEAD = """# What became of the papers' claims

Written by `suffice reproduce evidence --publish`; a test fails when it is stale. The claims are
those of arXiv:2403.01643, versions 1 to 3, in our words. A verdict is worked out, never typed in:
*confirmed* when every part of the claim held, *not confirmed* when one did not, *not tested here*
when the results it needs are not there. Claims about training are tested by published results at
the paper's sizes with three seeds at least, those about speed at equal heads; a claim about the
paper's own tables fails also where these say otherwise.
"""
CONVERSIONS = """## What conversions cost

Trained models whose attention `suffice convert` replaced, by the usual start and in closed form,
and what `suffice heal` gave back; made by `suffice reproduce conversion --run`.
"""
COLUMNS = "| # | claim | where | the paper's own figures | computed or measured here | verdict |"


def page() -> str:
    """Return the page for the results that are published now."""
    findings = [(claim, claim.examine()) for claim in claims()]
    counts = Counter(finding.verdict for _, finding in findings)
    summary = ", ".join(f"{counts[name]} {name}" for name in (CONFIRMED, NOT_CONFIRMED, NOT_TESTED))
    lines = [HEAD, f"{len(findings)} claims: {summary}.", "", COLUMNS, "|---|---|---|---|---|---|"]
    lines += [_line(claim, finding) for claim, finding in findings]
    lines += ["", "## What was run", "", *_runs()]
    lines += ["", CONVERSIONS, *conversion.lines(conversion.published())]
    return "\n".join(lines) + "\n"


def write_page() -> Path:
    """Write docs/evidence.md and return its file."""
    root = path_of("x").parents[2]
    if not (root / "docs").is_dir():
        raise DataError("docs/evidence.md belongs to a checkout of the source; write it there.")
    path = root / "docs" / "evidence.md"
    write_atomic(path, page())
    return path


def _line(claim: Claim, finding: Finding) -> str:
    cells = [
        str(claim.id),
        claim.claim,
        claim.where,
        finding.theirs,
        _with_minutes(finding),
        f"**{finding.verdict}**",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _with_minutes(finding: Finding) -> str:
    used = [name for name in finding.tables if finding.ours and _minutes(table(name)) is not None]
    if not used:
        return finding.ours
    stores = {table(name).store: table(name) for name in used}
    minutes = sum(_minutes(one) or 0.0 for one in stores.values())
    return f"{finding.ours} ({_written(minutes)} minutes)"


def _minutes(shown: Table) -> float | None:
    """Return the minutes behind a table's published results, None if there are none."""
    if shown.shows == "edge":
        groups = published_edge(shown).groups
        return sum(group.minutes for group in groups) if groups else None
    content = published(shown)
    return None if content is None else content.results.seconds / 60


def _runs() -> list[str]:
    lines = [
        "| results | scale | cells | machine | minutes | commit |",
        "|---|---|---|---|---|---|",
    ]
    for shown in TABLES.values():
        if shown.store != shown.name or shown.shows == "parts":
            continue
        row = _edge_row(shown) if shown.shows == "edge" else _cells_row(shown, published(shown))
        if row is not None:
            lines.append("| " + " | ".join(row) + " |")
    return lines if len(lines) > 2 else ["Nothing is published yet."]


def _cells_row(shown: Table, content: Published | None) -> list[str] | None:
    if content is None:
        return None
    stands = f" (in place of {shown.instead_of})" if shown.instead_of else ""
    return [
        f"{shown.name}{stands}",
        content.scale,
        str(len(content.results.cells)),
        machine_line(content.results.machine),
        _written(content.results.seconds / 60),
        (content.results.commit or "")[:12],
    ]


def _edge_row(shown: Table) -> list[str] | None:
    groups = published_edge(shown).groups
    if not groups:
        return None
    return [
        shown.name,
        "paper",
        f"{sum(len(group.timed) for group in groups)} times",
        machine_line(groups[0].machine),
        _written(sum(group.minutes for group in groups)),
        (groups[0].commit or "")[:12],
    ]


def _written(minutes: float) -> str:
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


__all__ = ["Claim", "Finding", "claims", "page", "write_page"]
