"""The verdict which mechanism suffices: intervals over paired seeds, never a maximum.

Every (mechanism, heads) is compared with the baseline at equal heads, by test accuracy. Two
claims are separate: that it suffices (its loss is shown to stay within the margin) and that
it differs (better or worse, whatever the margin).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from suffice.errors import ConfigError, unknown
from suffice.measure.results import Results, check_margin
from suffice.measure.statistics import (
    EXACT,
    Pairing,
    Summary,
    holm,
    pair,
    paired_p,
    seeds_needed,
    summarise,
)
from suffice.measure.timing import summarise_times

COSTS = ("flops", "latency", "parameters")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one (mechanism, heads).

    Args:
        by: "flops" (attention layers, one sample), "latency" (median seconds of one batch) or
            "parameters" (whole model).
        value: the price in that unit.
        order: sort key: the value, then parameters, then name, then heads.
    """

    by: str
    value: float
    order: tuple[float, int, str, int]


def cost_of(results: Results, mechanism: str, num_heads: int, by: str) -> Cost:
    """Return what one trained (mechanism, heads) costs."""
    cell = results.select(mechanism, num_heads)[0]
    if by == "latency":
        speed = results.speed(mechanism, num_heads)
        if speed is None:
            raise ConfigError(
                f"the latency of {mechanism} with num_heads={num_heads} was not measured; "
                "order by flops or parameters instead."
            )
        value = summarise_times(speed.latency).median
    else:
        value = float(cell.flops if by == "flops" else cell.parameters_model)
    return Cost(by=by, value=value, order=(value, cell.parameters_model, mechanism, num_heads))


LEVEL = 0.95  # confidence of the interval behind "suffices"
ALPHA = 0.01  # chance of any false "better" or "worse" in one comparison
CAP = 1000  # more additional seeds than this are not worth naming
MIN_SEEDS = 3  # two accuracies of a small test set often agree by chance, three hardly ever


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One (mechanism, heads) against the baseline with as many heads.

    Args:
        mechanism: name of the mechanism.
        num_heads: heads of both.
        accuracy: test accuracy over all its seeds.
        pairing: differences to the baseline, seed by seed.
        difference: their summary, None if no seed is shared.
        sufficiency: "suffices", "does not suffice" or "undecided".
        more_seeds: how many more seeds would decide, if mean and sd stay; None if decided
            already, unknown, or more than CAP.
        claim: "better", "worse", "no difference", or "not tested" below three shared seeds.
        p_value: of the paired t-test, Holm-corrected; None if not tested.
        cost: what it costs.
        cheaper: whether that is less than the baseline with as many heads.
    """

    mechanism: str
    num_heads: int
    accuracy: Summary
    pairing: Pairing
    difference: Summary | None
    sufficiency: str
    more_seeds: int | None
    claim: str = "not tested"
    p_value: float | None = None
    cost: Cost
    cheaper: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a comparison.

    Args:
        baseline: name of the mechanism that all are compared with.
        margin: the margin used, a fraction of accuracy.
        by: the cost mechanisms are ordered by.
        outcome: "suffices" (a cheaper mechanism does), "baseline" (no cheaper one does) or
            "undecided".
        winner: the comparison that is named: the cheapest that suffices, or when undecided
            the cheapest that might; None for "baseline".
        comparisons: every (mechanism, heads) except the baseline's, in the order trained.
        accuracies: test accuracy of the baseline by number of heads.
    """

    baseline: str
    margin: float
    by: str
    outcome: str
    winner: Comparison | None
    comparisons: tuple[Comparison, ...]
    accuracies: dict[int, Summary]

    def find(self, mechanism: str, num_heads: int) -> Comparison | None:
        """Return one comparison, None for the baseline itself."""
        key = (mechanism, num_heads)
        return next((c for c in self.comparisons if (c.mechanism, c.num_heads) == key), None)


def judge(results: Results, *, margin: float | None = None, cost: str = "flops") -> Verdict:
    """Compare every mechanism with the baseline and name the cheapest that suffices.

    Args:
        results: the comparison.
        margin: another margin than the one in results, a fraction of accuracy.
        cost: what "cheapest" means: "flops", "latency" (median) or "parameters"; ties are
            broken by parameters, then name, then fewer heads.

    Raises:
        ConfigError: if the margin or the cost is not legal, the baseline was not trained, or
            the latency decides and one was not measured.
    """
    margin = results.margin if margin is None else margin
    check_margin(margin)
    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    names = dict.fromkeys(cell.mechanism for cell in results.cells)
    if results.baseline not in names:
        raise ConfigError(
            f"the baseline {results.baseline!r} was not trained; "
            f"trained: {', '.join(names) or 'none'}."
        )
    others = [key for key in results.pairs() if key[0] != results.baseline]
    comparisons = _claim(tuple(_compare(results, *key, margin, cost) for key in others))
    outcome, winner = _choose(comparisons)
    heads = [h for name, h in results.pairs() if name == results.baseline]
    return Verdict(
        baseline=results.baseline,
        margin=margin,
        by=cost,
        outcome=outcome,
        winner=winner,
        comparisons=comparisons,
        accuracies={h: _accuracy(results, results.baseline, h) for h in heads},
    )


def decide(difference: Summary | None, margin: float) -> tuple[str, int | None]:
    """Return whether a difference is within the margin, and how many more seeds would decide.

    Returns:
        "suffices" if the whole interval is above -margin, "does not suffice" if it is below,
        else "undecided"; and how many more seeds would decide, if that is known. One seed
        decides nothing, nor do two whose differences are equal: their spread is unknown.

    Example:
        >>> decide(Summary(n=5, mean=0.0, sd=0.0, low=0.0, high=0.0), 0.01)
        ('suffices', None)
    """
    if difference is None or difference.sd is None:
        return "undecided", None
    if difference.sd == 0.0 and difference.n < MIN_SEEDS:
        return "undecided", MIN_SEEDS - difference.n
    half = difference.mean - difference.low
    if difference.mean - half > EXACT - margin:
        return "suffices", None
    if difference.mean + half < -margin - EXACT:
        return "does not suffice", None
    distance = abs(difference.mean + margin)
    more = seeds_needed(
        lambda half: distance - half > EXACT, sd=difference.sd, n=difference.n, cap=CAP
    )
    return "undecided", more


def _compare(
    results: Results, mechanism: str, num_heads: int, margin: float, by: str
) -> Comparison:
    """Compare one (mechanism, heads) with the baseline with as many heads."""
    cost = cost_of(results, mechanism, num_heads, by)
    pairing = pair(
        _by_seed(results, mechanism, num_heads), _by_seed(results, results.baseline, num_heads)
    )
    difference = summarise(pairing.differences, level=LEVEL) if pairing.seeds else None
    sufficiency, more = decide(difference, margin)
    cheaper = bool(results.select(results.baseline, num_heads)) and (
        cost.value < cost_of(results, results.baseline, num_heads, by).value
    )
    return Comparison(
        mechanism=mechanism,
        num_heads=num_heads,
        accuracy=_accuracy(results, mechanism, num_heads),
        pairing=pairing,
        difference=difference,
        sufficiency=sufficiency,
        more_seeds=more,
        cost=cost,
        cheaper=cheaper,
    )


def _claim(comparisons: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """Test every difference, corrected for how many are tested together."""
    tested = [i for i, c in enumerate(comparisons) if len(c.pairing.seeds) >= MIN_SEEDS]
    p_values = [paired_p(comparisons[i].pairing.differences) for i in tested]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    return tuple(
        replace(c, p_value=adjusted[i], claim=_word(c.difference, adjusted[i]))
        if i in adjusted
        else c
        for i, c in enumerate(comparisons)
    )


def _word(difference: Summary, p_value: float) -> str:
    if p_value >= ALPHA:
        return "no difference"
    return "better" if difference.mean > 0 else "worse"


def _choose(comparisons: tuple[Comparison, ...]) -> tuple[str, Comparison | None]:
    """Name the cheapest cheaper one that suffices, else the cheapest that might."""
    cheaper = sorted((c for c in comparisons if c.cheaper), key=lambda c: c.cost.order)
    for word in ("suffices", "undecided"):
        for comparison in cheaper:
            if comparison.sufficiency == word:
                return word, comparison
    return "baseline", None


def _by_seed(results: Results, mechanism: str, num_heads: int) -> dict[int, float]:
    """Return the test accuracy of every seed of one (mechanism, heads)."""
    return {cell.seed: cell.test_accuracy for cell in results.select(mechanism, num_heads)}


def _accuracy(results: Results, mechanism: str, num_heads: int) -> Summary:
    """Summarise the test accuracy of one (mechanism, heads) over its seeds."""
    return summarise(list(_by_seed(results, mechanism, num_heads).values()), level=LEVEL)
