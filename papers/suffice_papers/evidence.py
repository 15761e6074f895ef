"""docs/evidence.md: every claim of the sources with its verdict, and the trainings behind it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from suffice.utils.files import write_atomic
from suffice_papers import conversion, counted_claims, trained_claims
from suffice_papers.edge import published_edge
from suffice_papers.finding import CONFIRMED, CONTRADICTED, NOT_TESTED, UNDECIDED, ClaimFinding
from suffice_papers.published import Published
from suffice_papers.results import document, published
from suffice_papers.rows import machine_line, minutes_text
from suffice_papers.tables import TABLES, Table, table


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something the sources say."""

    id: int  # number of the claim
    about: str  # a key of `PARTS`
    where: str  # version and place
    claim: str  # statement of the source, in our words
    check: str  # function that examines it, of `counted_claims` or `trained_claims`
    args: dict[str, Any]  # arguments of the check

    def examine(self) -> ClaimFinding:
        """Check the claim with the results that are published now."""
        module = counted_claims if hasattr(counted_claims, self.check) else trained_claims
        return getattr(module, self.check)(**self.args)


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim, by number.

    Example:
        >>> len(claims()), claims()[10].check
        (60, 'savings')
    """
    text = resources.files("suffice_papers").joinpath("claims.json").read_text("utf-8")
    return tuple(Claim(**fields) for fields in json.loads(text))


HEAD = """# The papers' claims, checked

Written by `suffice reproduce evidence --publish`; a test fails when it is stale. The claims are
those of arXiv:2403.01643, versions 1 to 3, and of two texts about small language models, in our
words. Verdicts are computed, never entered by hand:

- *confirmed*: every part of the claim was shown. A 95% interval that holds the stated value counts
  only if it excludes no effect; few trainings confirm nothing.
- *contradicted*: at least one part was shown to be otherwise, by an interval, by a count or by the
  source's own figures.
- *not decided by this evidence*: the intervals hold both the claim and its opposite.
- *not tested here*: nothing at the claim's size was run; the page says what a test would take,
  and figures of smaller models, where there are any, decide nothing.

Claims about training are tested by published results at the paper's sizes with three seeds at
least, those about speed at equal heads. Intervals in brackets are of 95%, paired by seed. Those of
test accuracy and of its gains are at least as wide as the number of test rows asks for
([measuring](measuring.md)); those of training accuracy, losses and times cover seeds alone.
"""
CONVERSIONS = """## What conversions cost

Trained models whose attention `suffice convert` replaced, by the usual start and in closed form,
and what `suffice heal` gave back; made by `suffice reproduce conversion --run`.
"""
VERDICTS = {
    CONFIRMED: "Confirmed",
    CONTRADICTED: "Contradicted",
    UNDECIDED: "Not decided by this evidence",
    NOT_TESTED: "Not tested here",
}
PARTS = {
    "headline": """## The claim that all three versions turn on
""",
    "attention": """## What attention does

Claims about quality, time and cost: whoever chooses a mechanism needs these.
""",
    "others": """## What an article and a chapter say

"Efficient Attention Mechanisms for Tiny Language Models" by J. D. Baena, and a textbook chapter
on multi-head attention and its variants.
""",
    "text": """## What the papers print of themselves

Captions, divisors, proofs, sizes and set-ups. An error here is one of the text and says nothing
against a mechanism.
""",
}
FILTER = "claims"  # the page's buttons that show one verdict alone


def page() -> str:
    """Return the page for the results that are published now."""
    findings = [(claim, claim.examine()) for claim in claims()]
    counts = Counter(finding.verdict for _, finding in findings)
    lines = [HEAD, *_filter(counts)]
    for about, head in PARTS.items():
        of_part = [pair for pair in findings if pair[0].about == about]
        lines += ["", head, *(_cards(of_part) if about == "headline" else _part(of_part))]
    lines += ["", "## What was run", "", *_runs()]
    lines += ["", CONVERSIONS, *conversion.lines(conversion.published())]
    return "\n".join(lines) + "\n"


def _part(findings: Sequence[tuple[Claim, ClaimFinding]]) -> list[str]:
    by_verdict = {name: [pair for pair in findings if pair[1].verdict == name] for name in VERDICTS}
    summary = ", ".join(f"{len(pairs)} {name}" for name, pairs in by_verdict.items())
    lines = [f"{len(findings)} claims: {summary}."]
    for verdict, pairs in by_verdict.items():
        if pairs:
            lines += ["", f"### {VERDICTS[verdict]}", "", *_cards(pairs)]
    return lines


def _cards(findings: Sequence[tuple[Claim, ClaimFinding]]) -> list[str]:
    return ['<div class="claims">', *(_card(*pair) for pair in findings), "</div>"]


def write_page() -> Path:
    """Write docs/evidence.md and return its file."""
    path = document("evidence.md")
    write_atomic(path, page())
    return path


def _filter(counts: Counter[str]) -> list[str]:
    options = [("all", "all", sum(counts.values()))]
    options += [(_kind(verdict), verdict, counts[verdict]) for verdict in VERDICTS]
    buttons = [
        f'<label><input type="radio" name="{FILTER}" value="{kind}"'
        f"{' checked' if kind == 'all' else ''}> {words} ({count})</label>"
        for kind, words, count in options
    ]
    return ['<div class="claims-filter">', *buttons, "</div>"]


def _kind(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _card(claim: Claim, finding: ClaimFinding) -> str:
    here = "here, smaller" if finding.needs else "here"
    figures = {
        "in the paper": finding.theirs,
        here: _with_minutes(finding),
        "a test needs": finding.needs,
    }
    shown = "".join(
        f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in figures.items() if words
    )
    return (
        f'<article class="claim {_kind(finding.verdict)}" id="claim-{claim.id}">'
        f"<strong>{claim.id}. {escape(claim.claim)}</strong> <em>{escape(claim.where)}</em>"
        f"<dl>{shown}</dl><b>{finding.verdict}</b></article>"
    )


def _with_minutes(finding: ClaimFinding) -> str:
    used = [name for name in finding.tables if finding.ours and _minutes(table(name)) is not None]
    if not used:
        return finding.ours
    stores = {table(name).store: table(name) for name in used}
    minutes = sum(_minutes(one) or 0.0 for one in stores.values())
    return f"{finding.ours} ({minutes_text(minutes)} minutes)"


def _minutes(shown: Table) -> float | None:
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
        f"{shown.published_as(content.scale)}{stands}",
        content.scale,
        str(len(content.results.cells)),
        machine_line(content.results.machine),
        minutes_text(content.results.seconds / 60),
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
        minutes_text(sum(group.minutes for group in groups)),
        (groups[0].commit or "")[:12],
    ]


__all__ = ["Claim", "ClaimFinding", "claims", "page", "write_page"]
