"""Claims about speed, held against the edge tables at equal heads."""

from __future__ import annotations

from suffice.reproduce.edge import published_edge, wanted
from suffice.reproduce.edge_sheet import records
from suffice.reproduce.evidence.finding import Finding
from suffice.reproduce.table import MECHANISMS
from suffice.reproduce.tables import table


def savings(name: str, mechanisms: list[str], *, least: float | None, most: float) -> Finding:
    """Hold the share of Standard's time that is saved, by the paper and here, against the claim.

    Args:
        name: of the edge table.
        mechanisms: of which.
        least: the smallest saving stated, None where only the largest is.
        most: the largest saving stated.
    """
    found = table(name)
    edge = published_edge(found)
    rows = [row for row in records(found, edge) if row["mechanism"] in mechanisms]
    theirs = [1 - ratio for ratio in _of_paper(name, mechanisms)]
    ours = [1 - row["ratio"] for row in rows]
    complete = len(edge.groups) == len(wanted(found))
    holds: list[bool | None] = [
        _reaches(theirs, most, complete=True),
        _reaches(ours, most, complete=complete),
    ]
    if least is not None:
        holds.append(None if not ours else min(ours) >= least - 0.005 if complete else None)
    return Finding(
        theirs=_range(theirs),
        ours=_range(ours) + (f" ({name})" if ours else ""),
        holds=tuple(holds),
        tables=(name,),
    )


def _reaches(ours: list[float], most: float, *, complete: bool) -> bool | None:
    """Say whether the largest saving is as large as stated, to half a percent."""
    if ours and max(ours) >= most - 0.005:
        return True
    return False if complete else None


def _of_paper(name: str, mechanisms: list[str]) -> list[float]:
    """Return the paper's ratios to Standard at equal heads."""
    from suffice.measure.paper import paper_seconds

    version = table(name).paper
    found = []
    for task in ("mnist", "cifar100", "imagenet", "imdb", "amazon"):
        for heads in (1, 2, 4, 6, 8):
            base = paper_seconds(version, task, MECHANISMS[0], heads)
            for mechanism in mechanisms:
                own = paper_seconds(version, task, mechanism, heads)
                if own is not None and base is not None:
                    found.append(own / base)
    return found


def _range(shares: list[float]) -> str:
    """Write the range of savings.

    Example:
        >>> _range([0.05, 0.2]), _range([])
        ('5.0% to 20.0% of the time saved at equal heads', '')
    """
    if not shares:
        return ""
    return f"{100 * min(shares):.1f}% to {100 * max(shares):.1f}% of the time saved at equal heads"
