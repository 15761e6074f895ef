"""Claims about what training gives: gains over Standard, ranks, fit.

Only published results at the paper's scale count; those of a small scale test nothing the papers
say about their models.
"""

from __future__ import annotations

from suffice.measure.results import Cell
from suffice.measure.statistics import Summary, pair, summarise
from suffice.papers.edge import published_edge, records, wanted
from suffice.papers.finding import Finding, percent
from suffice.papers.printed import PaperRow, paper_row
from suffice.papers.results import published
from suffice.papers.rows import over
from suffice.papers.tables import BASELINE, BLEU, MECHANISMS, TEST, TRAIN, Measure, table

COLUMNS = {column.name: column for column in (*TRAIN, *TEST)}
SUPER = "super_attention"
SHOWN = 2  # places told one by one
ENOUGH = 3  # seeds, below which nothing is said


def gains(
    metric: str,
    stated: dict[str, float],
    *,
    at_least: float | None = None,
    tables: list[str] | None = None,
) -> Finding:
    """Hold the gain of Super Attention over Standard against what is stated.

    Args:
        metric: whose relative gain is meant.
        stated: by table, held to its first digit behind the point of a percentage; by interval
            of ours.
        at_least: instead, what the largest test gain of all `tables` must reach.
        tables: of `at_least`.
    """
    names = list(stated) or list(tables or ())
    theirs, ours, holds, found = [], [], [], []
    for name in names:
        theirs.append(f"{name} {_both(name)}")
        gain = _gain(name, metric)
        if gain is None:
            if at_least is None:
                holds.append(None)
            continue
        ours.append(f"{name} {_told(gain)}")
        found.append(gain)
        if at_least is None:
            holds.append(_inside(stated[name], gain))
    if at_least is not None:
        reached = [_highest(gain) >= at_least for gain in found]
        holds = [True] if any(reached) else [False if len(found) == len(names) else None]
    label = "relative gain, " + metric.replace("_", " ")
    return Finding(
        theirs="; ".join(theirs),
        ours=f"{label}: {'; '.join(ours)}" if ours else "",
        holds=tuple(holds),
        tables=tuple(names),
    )


def best_everywhere(tables: list[str], metrics: list[str], *, highest: bool = False) -> Finding:
    """Ask whether Super Attention is first by every metric, at each number of heads.

    Args:
        tables: where.
        metrics: by which.
        highest: at the table's highest number of heads alone.
    """
    theirs, ours, holds, seen = [], [], [], 0
    for name in tables:
        shown = table(name)
        for heads in shown.heads[-1:] if highest else shown.heads:
            for metric in metrics:
                column = COLUMNS[metric]
                papers = {m: paper_row(shown.paper, m, heads) for m in shown.mechanisms}
                first = _first(column, {m: column.theirs(r) for m, r in papers.items()})
                if first and SUPER not in first:
                    holds.append(False)  # the claim is of these very rows
                    theirs.append(f"{name}, {_at(heads)}, {column.title}: {_names(first)} first")
                won = _first(column, means(name, heads, column))
                seen += won is not None
                holds.append(None if won is None else SUPER in won)
                if won is not None and SUPER not in won:
                    ours.append(f"{name}, {_at(heads)}, {column.title}: {_names(won)} first")
    return Finding(
        theirs="; ".join(theirs) or "first in all of these tables",
        ours=_tally(ours, seen),
        holds=tuple(holds),
        tables=tuple(tables),
    )


def ahead(name: str, metric: str, stated: dict[str, float]) -> Finding:
    """Hold the points Super Attention is ahead of the others at the highest number of heads.

    Args:
        name: of the table.
        metric: an accuracy.
        stated: points by mechanism; "least" is the smallest lead over any other.
    """
    shown, column = table(name), COLUMNS[metric]
    heads = shown.heads[-1]
    papers = {m: column.theirs(paper_row(shown.paper, m, heads)) for m in shown.mechanisms}
    averages = means(name, heads, column)
    theirs, ours, holds = [], [], []
    for mechanism, points in stated.items():
        lead = 100 * _lead(papers, mechanism)
        theirs.append(f"{_over(mechanism)} {lead:+.2f} points")
        holds.append(round(lead, 2) == points)
        if averages is not None:
            ours.append(f"{_over(mechanism)} {100 * _lead(averages, mechanism):+.2f} points")
    return Finding(
        theirs="; ".join(theirs),
        ours=f"{name}: {'; '.join(ours)}" if ours else "",
        holds=tuple(holds),
        tables=(name,),
    )


def flat(tables: list[str]) -> Finding:
    """Ask whether the paper's training accuracy is one of weights at the lowest validation loss."""
    theirs, ours, holds = [], [], []
    for name in tables:
        shown, (column, _) = table(name), TRAIN
        heads = shown.heads[-1]
        row = paper_row(shown.paper, BASELINE, heads)
        theirs.append(f"{name}: Standard {_fit(row)}")
        cells = _cells(name, BASELINE, heads)
        if cells is None:
            holds.append(None)
            continue
        summary = over(column, cells)
        test = over(TEST[0], cells)
        ours.append(
            f"{name}: {100 * summary.mean:.1f}% on train and {100 * test.mean:.1f}% on test at the "
            "lowest validation loss"
        )
        holds.append(row.train_accuracy <= summary.high)
    return Finding(
        theirs="; ".join(theirs), ours="; ".join(ours), holds=tuple(holds), tables=tuple(tables)
    )


def _fit(row: PaperRow) -> str:
    return f"{100 * row.train_accuracy:.1f}% on train, {100 * row.test_accuracy:.1f}% on test"


def _tally(lost: list[str], seen: int) -> str:
    """Say in how many places Super Attention was first, and who was in some of the others.

    Example:
        >>> _tally(["a", "b", "c"], 4), _tally([], 4), _tally([], 0)
        ('first in 1 of 4; a; b; ...', 'first in 4 of 4', '')
    """
    told = [*lost[:SHOWN], *["..."] * (len(lost) > SHOWN)]
    return "; ".join([f"first in {seen - len(lost)} of {seen}", *told]) if seen else ""


def _cells(name: str, mechanism: str, heads: int) -> list[Cell] | None:
    """Return published cells of the paper's scale; None if fewer than enough seeds are there."""
    kept = published(table(name))
    if kept is None or kept.scale != "paper":
        return None
    cells = kept.results.select(mechanism, heads)
    return cells if len(cells) >= ENOUGH else None


def means(name: str, heads: int, column: Measure) -> dict[str, float] | None:
    """Return the mean of each mechanism; None unless all were trained."""
    found = {}
    for mechanism in table(name).mechanisms:
        cells = _cells(name, mechanism, heads)
        summary = None if cells is None else over(column, cells)
        if summary is None:
            return None
        found[mechanism] = summary.mean
    return found


def _first(column: Measure, values: dict[str, float | None] | None) -> list[str] | None:
    if values is None or None in values.values():
        return None
    best = (max if column.rising else min)(values.values())
    return [name for name, value in values.items() if column.write(value) == column.write(best)]


def _gain(name: str, metric: str) -> Summary | None:
    """Return the relative gain at the highest heads, paired by seed; None if it was not trained."""
    heads = table(name).heads[-1]
    both = [_cells(name, mechanism, heads) for mechanism in (SUPER, BASELINE)]
    if None in both:
        return None
    ours, base = ({cell.seed: getattr(cell, metric) for cell in cells} for cells in both)
    seeds = pair(ours, base).seeds
    return summarise([ours[seed] / base[seed] - 1 for seed in seeds]) if seeds else None


def _both(name: str) -> str:
    """Write the relative gains of the paper's own rows, on train and on test."""
    shown = table(name)
    ours, base = (paper_row(shown.paper, m, shown.heads[-1]) for m in (SUPER, BASELINE))
    train = ours.train_accuracy / base.train_accuracy - 1
    test = ours.test_accuracy / base.test_accuracy - 1
    return f"{percent(train, digits=2)} train, {percent(test, digits=2)} test"


def _told(gain: Summary) -> str:
    ends = "" if gain.sd is None else f" [{percent(gain.low)}, {percent(gain.high)}]"
    return f"{percent(gain.mean)}{ends}"


def _inside(stated: float, gain: Summary) -> bool:
    """Say whether an interval, widened by half a stated digit, holds a value."""
    half = 0.0005
    return _lowest(gain) - half <= stated <= _highest(gain) + half


def _lowest(gain: Summary) -> float:
    return gain.mean if gain.low is None else gain.low


def _highest(gain: Summary) -> float:
    return gain.mean if gain.high is None else gain.high


def _lead(values: dict[str, float], over_whom: str) -> float:
    """Return how far Super Attention is ahead of one other, or of all others."""
    if over_whom == "least":
        return values[SUPER] - max(v for name, v in values.items() if name != SUPER)
    return values[SUPER] - values[over_whom]


def _over(mechanism: str) -> str:
    return "over the next" if mechanism == "least" else f"over {mechanism}"


def _names(mechanisms: list[str]) -> str:
    return " and ".join(mechanisms)


def _at(heads: int) -> str:
    return f"{heads} head{'s' * (heads != 1)}"


RANKS_COLUMNS: dict[str, Measure] = {column.name: column for column in (*TRAIN, *TEST, BLEU)}


def rank(name: str, metric: str, heads: int, stated: dict[str, int]) -> Finding:
    """Hold printed ranks against the printed figures."""
    shown, column = table(name), RANKS_COLUMNS[metric]
    values = {m: column.theirs(paper_row(shown.paper, m, heads)) for m in shown.mechanisms}
    places = column.ranks(values)
    told = [f"{m} {column.write(v)} is {places[m]}" for m, v in values.items() if m in stated]
    found = means(name, heads, column)
    ours = "" if found is None else f"{name}: " + _listed(column.ranks(found))
    return Finding(
        theirs="; ".join(told),
        ours=ours,
        holds=tuple(places[m] == place for m, place in stated.items()),
        tables=(name,) if ours else (),
    )


def gains_of_rows(stated: dict[str, float]) -> Finding:
    """Hold stated relative gains of training accuracy against the rows of the tables named."""
    told, holds = [], []
    for name, gain in stated.items():
        shown = table(name)
        rows = [paper_row(shown.paper, m, shown.heads[-1]) for m in ("super_attention", "standard")]
        found = rows[0].train_accuracy / rows[1].train_accuracy - 1
        told.append(f"{shown.source} {percent(found, digits=2)}")
        holds.append(abs(found - gain) < 0.0005)
    return Finding(theirs="; ".join(told), holds=tuple(holds))


def _listed(places: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {place}" for name, place in places.items())


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
    from suffice.papers.printed import paper_seconds

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
