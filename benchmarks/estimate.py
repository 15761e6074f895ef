"""The range of margins that is printed before training and after two seeds, against what happens.

For each published comparison of a recipe of classes, other comparisons are simulated with its test
rows, its accuracy, the share of rows on which two trainings disagree, and the spread of its seeds.
Where the answers were not kept, half as many rows are taken to differ as if models answered
independently. Each simulated interval is that of the verdict; the range holds if half of its width
is within it.

    python -m benchmarks.estimate             # 200 comparisons of each recipe, a few minutes
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

from benchmarks.verdict import Truth, comparison
from suffice.comparison import Results
from suffice.comparison.plan import Plan
from suffice.comparison.resolution import Range, after_two_seeds, before_training
from suffice.comparison.scores import Scores, difference_table, metric_in
from suffice.train.recipes import recipe
from suffice_papers.advice import spread_of
from suffice_papers.published import published_names, read_published

TABLES = 200
SEEDS = 5
NAMES = ("standard", "optimised", "efficient", "super_attention")
REACH = 0.9  # of the comparisons of each recipe


@dataclass(frozen=True)
class Known:
    """A published comparison: its accuracy, rows that differ and spread of seeds."""

    name: str
    results: Results
    plan: Plan
    accuracy: float
    differ: float
    spread: float

    def answers(self, rng: np.random.Generator) -> np.ndarray:
        """Return right and wrong answers [mechanisms, seeds, rows] of another such comparison."""
        point = float(norm.ppf(self.accuracy))
        both = self.accuracy - self.differ / 2

        def excess(shared: float) -> float:
            of_two = multivariate_normal([0.0, 0.0], [[1.0, shared], [shared, 1.0]])
            return float(of_two.cdf([point, point])) - both

        shared = brentq(excess, 1e-6, 1.0 - 1e-6)
        truth = Truth(
            rows=math.sqrt(shared),
            rest=math.sqrt(1.0 - shared),
            seeds=self.spread / math.sqrt(2.0) / float(norm.pdf(point)),
        )
        rows = self.results.data.rows["test"]
        return truth.answers((self.accuracy,) * len(NAMES), SEEDS, rows, rng)


def known() -> Iterator[Known]:
    """Yield every published comparison that is about the accuracy of classes."""
    for name in published_names():
        published = read_published(name)
        results = published.results
        if results.better is not None or results.data is None or not results.data.classes:
            continue
        scores, rows = Scores(results, metric_in(results, "accuracy")), results.data.rows["test"]
        accuracies = [np.mean([*scores.values(*pair).values()]) for pair in results.pairs()]
        accuracy = float(np.mean(accuracies))
        tables = [
            difference_table(scores, *pair)[1]
            for pair in results.pairs()
            if pair[0] != results.baseline
        ]
        kept = [float((table**2).mean()) for table in tables if table.shape[1] > 1]
        differ = float(np.mean(kept)) if kept else accuracy * (1.0 - accuracy)
        variance, *_ = spread_of(results)
        chosen = recipe(published.recipe["name"], scale=published.scale)
        heads = (chosen.num_heads,)
        yield Known(
            name=name,
            results=results,
            plan=Plan(recipe=chosen, mechanisms=NAMES, heads=heads, seeds=SEEDS, baseline=NAMES[0]),
            accuracy=accuracy,
            differ=differ,
            spread=math.sqrt(max(0.0, variance - differ / rows)),
        )


def simulate(one: Known, tables: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return half widths [tables, mechanisms], and the ranges after two seeds [tables, 2]."""
    halves, ranges = [], []
    for _ in range(tables):
        right = one.answers(rng)
        results = comparison(right)
        scores = Scores(results, metric_in(results, "accuracy"))
        pairs = [pair for pair in results.pairs() if pair[0] != results.baseline]
        steps = rng.integers(1, len(pairs) + 1, len(pairs))  # of Holm's procedure
        halves.append(
            [
                float(scores.estimate(difference_table(scores, *pair)[1]).half_width(0.05 / step))
                for pair, step in zip(pairs, steps, strict=True)
            ]
        )
        ranges.append(after_two_seeds(comparison(right[:, :2]), one.plan))
    return np.array(halves), np.array(ranges)


def main() -> int:
    """Print, for each recipe, the ranges, what happens, and how often the ranges hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=TABLES, help="comparisons of each recipe")
    tables, rng, good = parser.parse_args().tables, np.random.default_rng(0), True
    print(f"margins in points of {SEEDS} seeds; happens: 5% to 95% of half the intervals")
    print(f"{'published':28}{'happens':>12}{'before':>12}{'holds':>7}", end="")
    print(f"{'unknown':>12}{'holds':>7}{'two seeds':>12}{'holds':>7}")
    for one in known():
        halves, ranges = simulate(one, tables, rng)
        before = before_training(one.results.data, one.plan)
        blank = replace(one.plan, recipe=replace(one.plan.recipe, name="another"))
        unknown = before_training(one.results.data, blank)
        after = halves >= ranges[:, :1], halves <= ranges[:, 1:]
        rates = [_held(halves, before), _held(halves, unknown), float((after[0] & after[1]).mean())]
        good &= rates[0] >= REACH and rates[2] >= REACH
        texts = [_written(np.quantile(halves, (0.05, 0.95)))]
        texts += [_written(before), f"{rates[0]:.0%}", _written(unknown), f"{rates[1]:.0%}"]
        texts += [_written(np.median(ranges, axis=0)), f"{rates[2]:.0%}"]
        widths = (12, 12, 7, 12, 7, 12, 7)
        print(
            one.name.ljust(28), *(f"{t:>{w}}" for t, w in zip(texts, widths, strict=True)), sep=""
        )
    return 0 if good else 1


def _held(halves: np.ndarray, of: Range) -> float:
    return float(((halves >= of[0]) & (halves <= of[1])).mean())


def _written(of: Range | np.ndarray) -> str:
    return f"{100 * of[0]:.2g}-{100 * of[1]:.2g}"


if __name__ == "__main__":
    sys.exit(main())
