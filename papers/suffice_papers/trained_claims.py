"""Claims about trained models: gains over Standard, ranks, fit, time.

Only published results at the paper's scale count; those of a small scale test nothing the papers
say about their models.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from suffice.comparison import judge
from suffice.comparison.metrics import MARGIN, metric_of
from suffice.comparison.results import Cell
from suffice.comparison.scores import Scores, summary_of
from suffice.comparison.sufficiency import FAILS, LEVEL, SUFFICES, UNLEARNED
from suffice.comparison.two_way_interval import bounded, estimate
from suffice.utils.statistics import Summary, pair, summarise
from suffice_papers.edge import paper_seconds, published_edge, records, wanted
from suffice_papers.finding import ClaimFinding, at_least, below_zero, percent
from suffice_papers.hellaswag import published_scores
from suffice_papers.references import Reference, reference
from suffice_papers.results import published
from suffice_papers.tables import BASELINE, BLEU, MECHANISMS, TEST, TRAIN, Measure, table

MEASURES = {measure.name: measure for measure in (*TRAIN, *TEST, BLEU)}
SUPER = "super_attention"
CHANCE = 25  # percent of HellaSwag's items, which have four endings
LISTED = 2  # places that a finding spells out
MIN_SEEDS = 3  # below, nothing is tested


def gains(
    metric: str,
    stated: dict[str, float],
    *,
    up_to: float | None = None,
    tables: list[str] | None = None,
) -> ClaimFinding:
    """Compare the gain of Super Attention over Standard with what is stated.

    Args:
        metric: metric whose relative gain is meant.
        stated: gains by table, to the first digit behind the point of a percentage.
        up_to: instead, a gain that the largest of all `tables` must reach.
        tables: tables of `up_to`.
    """
    names = list(stated) or list(tables or ())
    by_table = {name: _gain(name, metric) for name in names}
    parts = [
        None if gain is None else _reaches_gain(stated.get(name, up_to), gain)
        for name, gain in by_table.items()
    ]
    if up_to is not None:
        parts = [True] if True in parts else [None] if None in parts else [False]
    ours = "; ".join(f"{n} {_gain_text(gain)}" for n, gain in by_table.items() if gain is not None)
    return ClaimFinding(
        theirs="; ".join(f"{name} {_printed_gains(name)}" for name in names),
        ours=f"relative gain, {metric.replace('_', ' ')}: {ours}" if ours else "",
        holds=tuple(parts),
        tables=tuple(names),
    )


def _gain(name: str, metric: str) -> Summary | None:
    heads = table(name).heads[-1]
    both = [_cells(name, mechanism, heads) for mechanism in (SUPER, BASELINE)]
    if None in both:
        return None
    gain, base = _difference(name, metric, *both), summarise([getattr(c, metric) for c in both[1]])
    ends = {"low": gain.low, "high": gain.high}
    relative = {end: None if value is None else value / base.mean for end, value in ends.items()}
    return replace(gain, mean=gain.mean / base.mean, **relative)


def _difference(
    name: str, metric: str, ours: list[Cell], theirs: list[Cell], level: float = LEVEL
) -> Summary:
    """Return differences by seed, those of a test accuracy no surer than its rows allow."""
    values, others = ({cell.seed: cell.figure(metric) for cell in of} for of in (ours, theirs))
    differences = pair(values, others).differences
    scores = Scores(published(table(name)).results, metric_of("accuracy"))
    if metric != "test_accuracy" or scores.asked is None:
        return summarise(differences, level=level)
    found = estimate(np.array(differences)[:, None])
    found = bounded(found, summarise(list(values.values())).mean, scores.asked)
    return summary_of(differences, found, 1.0 - level)


def _reaches_gain(stated: float, gain: Summary) -> bool | None:
    if gain.low is None or gain.high is None:
        return None
    return at_least(stated - 0.0005, gain.low, gain.high)  # half a stated digit


def _gain_text(gain: Summary) -> str:
    ends = "" if gain.sd is None else f" [{percent(gain.low)}, {percent(gain.high)}]"
    return f"{percent(gain.mean)}{ends}"


def _printed_gains(name: str) -> str:
    train, test = (_printed_gain(name, measure) for measure in ("train_accuracy", "test_accuracy"))
    return f"{percent(train, digits=2)} train, {percent(test, digits=2)} test"


def _printed_gain(name: str, measure: str) -> float:
    shown = table(name)
    ours, base = (reference(shown.paper, m, shown.heads[-1]) for m in (SUPER, BASELINE))
    return getattr(ours, measure) / getattr(base, measure) - 1


def gains_of_rows(stated: dict[str, float]) -> ClaimFinding:
    """Compare stated relative gains of training accuracy with the rows of the tables named."""
    printed = {name: _printed_gain(name, "train_accuracy") for name in stated}
    return ClaimFinding(
        theirs="; ".join(
            f"{table(name).source} {percent(gain, digits=2)}" for name, gain in printed.items()
        ),
        holds=tuple(abs(printed[name] - gain) < 0.0005 for name, gain in stated.items()),
    )


def best_everywhere(
    tables: list[str], metrics: list[str], *, highest: bool = False
) -> ClaimFinding:
    """Check whether Super Attention beats all others by every metric, at each number of heads.

    Our trainings contradict where an interval shows another one ahead, and confirm where they show
    Super Attention ahead of each; a rank among means shows neither.
    """
    theirs, ours, holds, measured = [], [], [], 0
    for name in tables:
        shown = table(name)
        for heads in shown.heads[-1:] if highest else shown.heads:
            for metric in metrics:
                measure = MEASURES[metric]
                place = f"{name}, {heads} head{'s' * (heads != 1)}, {measure.title}"
                printed = _first(measure, _printed(name, heads, measure))
                if printed and SUPER not in printed:
                    holds.append(False)  # the claim is of these very rows
                    theirs.append(f"{place}: {' and '.join(printed)} first")
                parts = _leads(name, heads, measure)
                measured += parts is not None
                holds.append(None if parts is None else _all_hold(list(parts.values())))
                ahead = [other for other, part in (parts or {}).items() if part is False]
                if ahead:
                    ours.append(f"{place}: {' and '.join(ahead)} ahead")
    return ClaimFinding(
        theirs="; ".join(theirs) or "first in all of these tables",
        ours=_tally(ours, holds.count(True), measured),
        holds=tuple(holds),
        tables=tuple(tables),
    )


def _leads(name: str, heads: int, measure: Measure) -> dict[str, bool | None] | None:
    cells = {mechanism: _cells(name, mechanism, heads) for mechanism in table(name).mechanisms}
    if None in cells.values():
        return None
    ours = cells.pop(SUPER)
    level = 1.0 - (1.0 - LEVEL) / len(cells)  # of all others together
    leads = {}
    for other, theirs in cells.items():
        pair_of_cells = (theirs, ours) if measure.rising else (ours, theirs)
        behind = _difference(name, measure.name, *pair_of_cells, level)
        leads[other] = below_zero(behind.low, behind.high)
    return leads


def _all_hold(parts: list[bool | None]) -> bool | None:
    return False if False in parts else None if None in parts else True


def _first(measure: Measure, values: dict[str, float | None] | None) -> list[str] | None:
    """Return the best mechanisms by the values as printed; None if one is not known."""
    if values is None or None in values.values():
        return None
    best = measure.write((max if measure.rising else min)(values.values()))
    return [name for name, value in values.items() if measure.write(value) == best]


def _printed(name: str, heads: int, measure: Measure) -> dict[str, float | None]:
    shown = table(name)
    return {m: measure.theirs(reference(shown.paper, m, heads)) for m in shown.mechanisms}


def _tally(lost: list[str], won: int, measured: int) -> str:
    listed = [*lost[:LISTED], *["..."] * (len(lost) > LISTED)]
    return "; ".join([f"shown to be first in {won} of {measured}", *listed]) if measured else ""


def ahead(name: str, metric: str, stated: dict[str, float]) -> ClaimFinding:
    """Compare the lead of Super Attention over the others at the highest number of heads."""
    measure, heads = MEASURES[metric], table(name).heads[-1]
    printed, averages = _printed(name, heads, measure), means(name, heads, measure)
    ours = "" if averages is None else "; ".join(_lead_text(averages, m) for m in stated)
    return ClaimFinding(
        theirs="; ".join(_lead_text(printed, mechanism) for mechanism in stated),
        ours=f"{name}: {ours}" if ours else "",
        holds=tuple(round(100 * _lead(printed, m), 2) == points for m, points in stated.items()),
        tables=(name,),
    )


def _lead(values: dict[str, float], other: str) -> float:
    if other == "least":
        return values[SUPER] - max(v for name, v in values.items() if name != SUPER)
    return values[SUPER] - values[other]


def _lead_text(values: dict[str, float], other: str) -> str:
    name = "over the next" if other == "least" else f"over {other}"
    return f"{name} {100 * _lead(values, other):+.2f} points"


def flat(tables: list[str]) -> ClaimFinding:
    """Check whether the paper's training accuracy is one of weights at the lowest loss."""
    theirs, ours, holds = [], [], []
    for name in tables:
        shown = table(name)
        heads = shown.heads[-1]
        row = reference(shown.paper, BASELINE, heads)
        theirs.append(f"{name}: Standard {_fit_text(row)}")
        cells = _cells(name, BASELINE, heads)
        if cells is None:
            holds.append(None)
            continue
        train, test = TRAIN[0].over(cells), TEST[0].over(cells)
        ours.append(
            f"{name}: {100 * train.mean:.1f}% on train and {100 * test.mean:.1f}% on test at the "
            "lowest validation loss"
        )
        holds.append(row.train_accuracy <= train.high)
    return ClaimFinding(
        theirs="; ".join(theirs), ours="; ".join(ours), holds=tuple(holds), tables=tuple(tables)
    )


def _fit_text(row: Reference) -> str:
    return f"{100 * row.train_accuracy:.1f}% on train, {100 * row.test_accuracy:.1f}% on test"


def rank(name: str, metric: str, heads: int, stated: dict[str, int]) -> ClaimFinding:
    """Compare printed ranks with the printed figures."""
    measure = MEASURES[metric]
    values = _printed(name, heads, measure)
    ranks = measure.ranks(values)
    averages = means(name, heads, measure)
    ours = ""
    if averages is not None:
        listed = (f"{mechanism} {place}" for mechanism, place in measure.ranks(averages).items())
        ours = f"{name}: {', '.join(listed)}"
    return ClaimFinding(
        theirs="; ".join(
            f"{m} {measure.write(v)} is {ranks[m]}" for m, v in values.items() if m in stated
        ),
        ours=ours,
        holds=tuple(ranks[mechanism] == place for mechanism, place in stated.items()),
        tables=(name,) if ours else (),
    )


def savings(name: str, mechanisms: list[str], *, least: float | None, most: float) -> ClaimFinding:
    """Compare the share of Standard's time that is saved, by the paper and here, with the claim."""
    shown = table(name)
    edge = published_edge(shown)
    rows = [row for row in records(shown, edge) if row["mechanism"] in mechanisms]
    theirs = [1 - ratio for ratio in _printed_ratios(shown.paper, mechanisms)]
    ours = [1 - row["ratio"] for row in rows]
    complete = len(edge.groups) == len(wanted(shown))
    holds = [_reaches(theirs, most, complete=True), _reaches(ours, most, complete=complete)]
    if least is not None:
        holds.append(min(ours) >= least - 0.005 if ours and complete else None)
    return ClaimFinding(
        theirs=_range(theirs),
        ours=_range(ours) + (f" ({name})" if ours else ""),
        holds=tuple(holds),
        tables=(name,),
    )


def _reaches(savings: list[float], most: float, *, complete: bool) -> bool | None:
    if savings and max(savings) >= most - 0.005:
        return True
    return False if complete else None


def _printed_ratios(version: str, mechanisms: list[str]) -> list[float]:
    ratios = []
    for task in ("mnist", "cifar100", "imagenet", "imdb", "amazon"):
        for heads in (1, 2, 4, 6, 8):
            base = paper_seconds(version, task, MECHANISMS[0], heads)
            for mechanism in mechanisms:
                seconds = paper_seconds(version, task, mechanism, heads)
                if None not in (seconds, base):
                    ratios.append(seconds / base)
    return ratios


def _range(shares: list[float]) -> str:
    if not shares:
        return ""
    return f"{100 * min(shares):.1f}% to {100 * max(shares):.1f}% of the time saved at equal heads"


def _cells(name: str, mechanism: str, heads: int) -> list[Cell] | None:
    content = published(table(name))
    if content is None or content.scale != "paper":
        return None
    cells = content.results.select(mechanism, heads)
    return cells if len(cells) >= MIN_SEEDS else None


def means(name: str, heads: int, measure: Measure) -> dict[str, float] | None:
    """Return the mean of each mechanism; None unless all were trained."""
    by_mechanism = {}
    for mechanism in table(name).mechanisms:
        cells = _cells(name, mechanism, heads)
        summary = None if cells is None else measure.over(cells)
        if summary is None:
            return None
        by_mechanism[mechanism] = summary.mean
    return by_mechanism


def on_par(
    mechanisms: list[str],
    tables: list[str],
    *,
    smaller: list[str] = (),
    metric: str | None = None,
    needs: str = "",
) -> ClaimFinding:
    """Judge whether mechanisms suffice instead of Standard, as every comparison is judged.

    Args:
        mechanisms: mechanisms that are said to be on par.
        tables: tables at the paper's sizes, which decide.
        smaller: tables whose trainings are shown but decide nothing.
        metric: metric of the verdict; None: that of the results.
        needs: see `ClaimFinding`.
    """
    texts, holds = [], []
    for name in (*tables, *smaller):
        content = published(table(name))
        if content is None:
            holds += [None] * (name in tables)
            continue
        verdict = judge(content.results, margin=MARGIN, metric=metric)
        about = [c for c in verdict.comparisons if c.mechanism in mechanisms and c.difference]
        words = [c.sufficiency for c in about]
        worst = min(about, key=lambda c: c.difference.mean)
        decides = name in tables and content.scale == "paper" and verdict.outcome != UNLEARNED
        if decides:
            holds += [{SUFFICES: True, FAILS: False}.get(word) for word in words]
        heads = f"{worst.mechanism}, {worst.num_heads} head{'s' * (worst.num_heads != 1)}"
        texts.append(
            f"{name}{'' if decides else ' (small scale, decides nothing)'}: "
            f"{words.count(SUFFICES)} of {len(words)} suffice, {words.count(FAILS)} do not; the "
            f"lowest, {heads}, {_points(worst.difference)}"
        )
    return ClaimFinding(
        ours="; ".join(texts), holds=tuple(holds), tables=(*tables, *smaller), needs=needs
    )


def _points(summary: Summary) -> str:
    if summary.low is None or summary.high is None:
        return f"{100 * summary.mean:+.2f} points"
    return f"{100 * summary.mean:+.2f} points [{100 * summary.low:+.2f}, {100 * summary.high:+.2f}]"


def more_heads(tables: list[str]) -> ClaimFinding:
    """Check whether each mechanism is better with the most heads of a table than with the least."""
    texts, holds = [], []
    for name in tables:
        shown = table(name)
        few, many = shown.heads[0], shown.heads[-1]
        for mechanism in shown.mechanisms:
            cells = [_cells(name, mechanism, heads) for heads in (many, few)]
            if None in cells:
                holds.append(None)
                continue
            better = _difference(name, "test_accuracy", *cells)
            worse = below_zero(better.low, better.high)
            holds.append(None if worse is None else not worse)
            texts.append(f"{name}, {mechanism}, {many} for {few}: {_points(better)}")
    return ClaimFinding(ours="; ".join(texts), holds=tuple(holds), tables=tuple(tables))


def trains_faster(mechanisms: list[str], tables: list[str]) -> ClaimFinding:
    """Check whether an epoch takes less time than Standard's at equal heads, by seed."""
    texts, holds, printed = [], [], []
    for name in tables:
        shown = table(name)
        for mechanism in mechanisms:
            for heads in shown.heads:
                rows = [reference(shown.paper, m, heads) for m in (mechanism, BASELINE)]
                if None not in rows and None not in [row.seconds_per_epoch for row in rows]:
                    printed.append(1 - rows[0].seconds_per_epoch / rows[1].seconds_per_epoch)
                cells = [_cells(name, m, heads) for m in (mechanism, BASELINE)]
                if None in cells:
                    holds.append(None)
                    continue
                longer = _log_ratio(*cells)
                holds.append(below_zero(longer.low, longer.high))
                texts.append(f"{name}, {mechanism}, {heads}: {math.exp(longer.mean):.2f}x")
    faster, slower = holds.count(True), holds.count(False)
    counted = (
        f"shown to be faster in {faster} of {len(texts)} that were trained, slower in {slower}"
    )
    return ClaimFinding(
        theirs=_range(printed),
        ours=f"{counted}; typical epoch over Standard's: {'; '.join(texts)}" if texts else "",
        holds=tuple(holds),
        tables=tuple(tables),
    )


def _log_ratio(cells: list[Cell], others: list[Cell]) -> Summary:
    ours, theirs = (
        {cell.seed: math.log(cell.seconds_per_epoch) for cell in of} for of in (cells, others)
    )
    return summarise(pair(ours, theirs).differences)


def growing(tables: list[str], needs: str) -> ClaimFinding:
    """Show how far Super Attention is from Standard at each size that was trained."""
    texts = []
    for name in tables:
        content = published(table(name))
        if content is None:
            continue
        found = judge(content.results).find(SUPER, table(name).heads[-1])
        (cell, *_) = content.results.select(BASELINE, table(name).heads[-1])
        if found is not None and found.difference is not None:
            texts.append(f"{cell.parameters_model / 1e6:.2f}M: {_points(found.difference)}")
    return ClaimFinding(ours="; ".join(texts), holds=(None,), tables=tuple(tables), needs=needs)


def hellaswag(needs: str) -> ClaimFinding:
    """Show the scores of small models on HellaSwag, and chance."""
    scored = published_scores()
    texts, above = [], 0
    for one in scored:
        share, half = 100 * one.scores["acc"], 196 * one.errors["acc"]
        above += share - half > CHANCE
        texts.append(
            f"{one.mechanism} {share:.1f}% ± {half:.1f} ({one.steps} steps, validation loss "
            f"{one.validation_loss:.2f} nats)"
        )
    sizes = ", ".join(sorted({f"{one.parameters / 1e6:.1f}M" for one in scored}))
    items = max((one.items for one in scored), default=0)
    ours = (
        f"{items} items, models of {sizes}: {'; '.join(texts)}; {above} of {len(texts)} shown to "
        f"be above chance, {CHANCE}%, and scores of models that guess are alike in any case"
    )
    return ClaimFinding(ours=ours if texts else "", holds=(None,), needs=needs)
