"""Simulated comparisons whose truth is known: how often the verdict's intervals and claims err.

Each simulated comparison is a table of right and wrong answers, seeds by test rows, of mechanisms
whose true accuracies are known. It goes through the functions that judge real ones. Rows are more
or less difficult for all; the answers of a mechanism correlate over seeds (rows that suit it) and
over rows (seeds that turn out well) by as much as the case says.

    python -m benchmarks.verdict            # 2,000 comparisons of each case, some minutes
    python -m benchmarks.verdict --tables 200 --part samples
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product

import numpy as np
import pandas
from scipy.special import ndtr, ndtri

import suffice
from suffice.comparison import Cell, Results, judge
from suffice.comparison.answers import Answers
from suffice.comparison.results import SEEDS_ALONE, External
from suffice.comparison.scores import MIN_SEEDS
from suffice.comparison.sufficiency import FAILS, FIRST, SUFFICES, UNDECIDED
from suffice.comparison.two_way_interval import Sampling, estimate
from suffice.comparison.verdict import hopeless
from suffice.data.survey import Survey
from suffice.errors import DataError
from suffice.utils.statistics import upper_rate

TABLES = 2000
MARGIN = 0.01
ACCURACY = 0.8


@dataclass(frozen=True)
class Truth:
    """Standard deviations of the latent score behind an answer.

    Args:
        rows: difficulty of a row, for all mechanisms alike.
        own: of a row for one mechanism, whatever the seed.
        seeds: of a seed of one mechanism, whatever the row.
        rest: of a single answer.
    """

    rows: float = 1.0
    own: float = 0.0
    seeds: float = 0.0
    rest: float = 1.0

    def threshold(self, accuracy: float) -> float:
        """Return the mean of the latent score at which so many answers are right."""
        parts = (self.rows, self.own, self.seeds, self.rest)
        return float(ndtri(accuracy) * np.sqrt(sum(part**2 for part in parts)))

    def answers(
        self, accuracies: tuple[float, ...], seeds: int, rows: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return right (1) and wrong (0) answers [mechanisms, seeds, rows]."""
        single = np.float32
        difficulty = self.rows * rng.standard_normal(rows, dtype=single)
        right = np.empty((len(accuracies), seeds, rows), dtype=bool)
        for number, accuracy in enumerate(accuracies):
            score = difficulty + single(self.threshold(accuracy))
            if self.own:
                score = score + single(self.own) * rng.standard_normal(rows, dtype=single)
            effect = single(self.seeds) * rng.standard_normal((seeds, 1), dtype=single)
            if self.seeds:
                chance = ndtr((score + effect) / single(self.rest))
            else:
                chance = ndtr(score / single(self.rest))[None]
            right[number] = rng.random((seeds, rows), dtype=single) < chance
        return right


TRUTHS = {
    "independent": Truth(),
    "seeds differ": Truth(seeds=0.05),
    "rows suit one": Truth(own=0.5),
    "both": Truth(own=0.5, seeds=0.05),
    "strongly": Truth(own=0.2, seeds=0.2, rest=0.6),
}
SEEDS = (2, 3, 5, 10, 20)
ROWS = (200, 2000, 10_000)


def coverage(truth: Truth, seeds: int, rows: int, tables: int, rng: np.random.Generator) -> float:
    """Return how often the 95% interval of a difference of one point holds it."""
    covered = 0
    for _ in range(tables):
        right = truth.answers((ACCURACY - MARGIN, ACCURACY), seeds, rows, rng).astype(np.float64)
        found = estimate(right[0] - right[1], Sampling(largest=1.0))
        covered += bool(abs(found.mean + MARGIN) <= found.half_width(0.05))
    return covered / tables


NAMES = ("standard", "a", "b", "c")


def comparison(right: np.ndarray, *, most: int | None = None) -> Results:
    """Return a comparison of answers [mechanisms, seeds, rows], the first being the baseline."""
    cells, kept = [], {}
    for number, of_mechanism in enumerate(right):
        for seed, of_seed in enumerate(of_mechanism):
            cell = replace(
                _blank(),
                mechanism=NAMES[number],
                seed=seed,
                flops=1000 - number,
                test_accuracy=float(of_seed.mean()),
            )
            cells.append(cell)
            kept[cell.key] = _kept(of_seed)
    return replace(_empty(), cells=tuple(cells), rows=kept, most_seeds=most)


def _kept(right: np.ndarray) -> Answers:
    rows = len(right)
    zeros, ones = np.zeros(rows), np.ones(rows)
    label = np.ones(rows, dtype=np.int64)
    return Answers(
        label=label,
        predicted=right.astype(np.int64),
        right=right.astype(np.float64),
        asked=ones,
        loss=zeros,
        confidence=ones,
    )


@lru_cache
def _blank() -> Cell:
    return Cell(
        mechanism="standard",
        num_heads=1,
        seed=0,
        parameters_layer=1,
        parameters_model=1,
        flops=1,
        test_loss=None,
        test_accuracy=0.5,
    )


@lru_cache
def _empty() -> Results:
    return Results(
        task="simulated",
        recipe="simulated",
        title="simulated",
        margin=MARGIN,
        baseline="standard",
        cells=(),
    )


def false_differences(
    truth: Truth, copies: int, seeds: int, rows: int, tables: int, rng: np.random.Generator
) -> float:
    """Return how often a mechanism under further names is called better or worse anywhere."""
    wrong = 0
    for _ in range(tables):
        right = truth.answers((ACCURACY,) * (copies + 1), seeds, rows, rng)
        verdict = judge(comparison(right))
        wrong += any(c.claim in ("better", "worse") for c in verdict.comparisons)
    return wrong / tables


def false_winners(
    truth: Truth, others: int, seeds: int, rows: int, tables: int, rng: np.random.Generator
) -> float:
    """Return how often one of several that all lose exactly the margin is said to suffice."""
    accuracies = (ACCURACY, *(ACCURACY - MARGIN,) * others)
    wrong = sum(
        judge(comparison(truth.answers(accuracies, seeds, rows, rng))).outcome == "suffices"
        for _ in range(tables)
    )
    return wrong / tables


@dataclass(frozen=True)
class Runs:
    """Sequential comparisons of one mechanism with the baseline.

    Args:
        suffices: share in which it was said to suffice.
        fails: share in which it was said not to.
        seeds: mean number trained.
    """

    suffices: float
    fails: float
    seeds: float


def sequential(
    truth: Truth, loss: float, most: int, rows: int, tables: int, rng: np.random.Generator
) -> Runs:
    """Return what adding seeds while the verdict is open comes to; `loss` in margins."""
    words, seeds = [], []
    for _ in range(tables):
        right = truth.answers((ACCURACY, ACCURACY - loss * MARGIN), most, rows, rng)
        word, used = _run(right, most)
        words.append(word)
        seeds.append(used)
    return Runs(
        suffices=words.count("suffices") / tables,
        fails=words.count("does not suffice") / tables,
        seeds=float(np.mean(seeds)),
    )


def _run(right: np.ndarray, most: int) -> tuple[str, int]:
    """Return what is said at the end of one sequential comparison, and of how many seeds."""
    whole = comparison(right, most=most)
    for seeds in range(FIRST, most + 1):
        trained = tuple(cell for cell in whole.cells if cell.seed < seeds)
        found = judge(replace(whole, cells=trained)).comparisons[0]
        if found.sufficiency != "undecided" or hopeless(found, MARGIN, most):
            return found.sufficiency, seeds
    return "undecided", most


def fixed(
    truth: Truth, loss: float, seeds: int, rows: int, tables: int, rng: np.random.Generator
) -> Runs:
    """Return what so many seeds come to."""
    accuracies = (ACCURACY, ACCURACY - loss * MARGIN)
    words = [
        judge(comparison(truth.answers(accuracies, seeds, rows, rng))).comparisons[0].sufficiency
        for _ in range(tables)
    ]
    return Runs(
        suffices=words.count("suffices") / tables,
        fails=words.count("does not suffice") / tables,
        seeds=float(seeds),
    )


def rates(tables: int, rng: np.random.Generator) -> Iterator[tuple[str, float, bool]]:
    """Yield each rate of false claims with its name and whether it is as it should be."""
    for name in ("independent", "both"):
        for copies in (1, 3):
            rate = false_differences(TRUTHS[name], copies, 5, 500, tables, rng)
            what = f"equal mechanisms, {copies} to the baseline, {name}: called better or worse"
            yield what, rate, rate <= 0.01  # noqa: PLR2004
        for others in (1, 3):
            rate = false_winners(TRUTHS[name], others, 5, 500, tables, rng)
            yield f"{others} that lose the margin, {name}: one suffices", rate, rare(rate, tables)


LIMIT = 0.03  # of false "suffices"


def rare(rate: float, tables: int, limit: float = LIMIT) -> bool:
    """Return whether a simulated rate is at most the limit, but for chance (one-sided 5%)."""
    return rate <= limit + 1.645 * np.sqrt(limit * (1.0 - limit) / tables)


@dataclass(frozen=True, kw_only=True)
class Hard:
    """A case that means and intervals alone get wrong.

    Args:
        name: of the case.
        false: share of the comparisons in which what is said is false.
        suffices: share in which the mechanism is said to suffice, falsely or not.
        why: what counts as false; where it may be above `LIMIT`, why.
        limit: of `false`; None where no limit is promised.
    """

    name: str
    false: float
    suffices: float
    why: str
    limit: float | None = LIMIT


SPREAD = 0.003  # of accuracies over seeds
FAILURE = 0.4  # of accuracy, that a failed seed loses
MANY, CHANCE = 10_000, 1 / 16


def of_accuracies(
    accuracies: np.ndarray, rows: int | None = None, *, chance: float | None = CHANCE
) -> Results:
    """Return a comparison [mechanisms, seeds] whose answers were not kept."""
    results = comparison(accuracies[..., None])
    data = None if rows is None else Survey(rows={"test": rows}, counts={})
    return replace(results, rows={}, data=data, chance=chance)


def without_answers(right: np.ndarray, *, counted: bool = True) -> Results:
    """Return a comparison of answers of which the means alone, and maybe their number, are kept."""
    return of_accuracies(right.mean(axis=2), right.shape[2] if counted else None)


def said(results: Results) -> str:
    """Return what is said of the first mechanism that is no baseline."""
    return judge(results).comparisons[0].sufficiency


def failing(rate: float, seeds: int, tables: int, rng: np.random.Generator) -> Hard:
    """Return what is said of a mechanism as good as the baseline that fails in some seeds."""
    false = suffices = 0
    is_open = rate <= upper_rate(0, seeds)
    for _ in range(tables):
        accuracies = ACCURACY + SPREAD * rng.standard_normal((2, seeds))
        fails = rng.random(seeds) < rate
        accuracies[1] -= FAILURE * fails
        word = said(of_accuracies(accuracies, MANY))
        suffices += word == SUFFICES
        false += word == SUFFICES and (fails.any() or not is_open)
    name = f"fails in {rate:.0%} of seeds, {seeds} seeds"
    why = f"with a failed seed; {upper_rate(0, seeds):.0%} are left open, in words"
    if is_open:
        return Hard(name=name, false=false / tables, suffices=suffices / tables, why=why)
    why = f"any: fails more than the {upper_rate(0, seeds):.0%} left open, with 95% confidence"
    return Hard(name=name, false=false / tables, suffices=suffices / tables, why=why, limit=0.05)


def hard(tables: int, rng: np.random.Generator) -> Iterator[Hard]:
    """Yield the cases that means and intervals alone get wrong."""
    for rate, seeds in ((0.1, 3), (0.1, 5), (0.2, 3), (0.2, 5), (0.3, 3), (0.3, 5), (0.7, 3)):
        yield failing(rate, seeds, tables, rng)
    for spread in (SPREAD, 0.02):
        words = [
            said(of_accuracies(rng.normal(ACCURACY, spread, (2, 5)), MANY)) for _ in range(tables)
        ]
        name = f"sound, seeds spread by {100 * spread:g} points, 5 seeds"
        yield _counted(name, words, f'"{FAILS}", of a mechanism as good', false=FAILS)
    kept = {
        "kept": comparison,
        "counted": without_answers,
        "unknown": partial(without_answers, counted=False),
    }
    for name in ("kept", "counted"):
        right = (Truth().answers((CHANCE, CHANCE), 5, 512, rng) for _ in range(tables))
        words = [said(replace(kept[name](one), chance=CHANCE)) for one in right]
        yield _counted(f"all at chance, 512 rows, {name}", words)
    for accuracy in (0.995, 0.985):
        right = (Truth(own=0.5).answers((0.995, accuracy), 5, 2000, rng) for _ in range(tables))
        name = f"baseline at 99.5%, mechanism at {accuracy:.1%}, 5 seeds"
        yield _counted(name, [said(without_answers(one)) for one in right])
    for rows, (name, keep), seeds in product((200, 2000), kept.items(), (3, 5)):
        right = (TRUTHS["both"].answers(LOST, seeds, rows, rng) for _ in range(tables))
        words = [said(keep(one)) for one in right]
        what = f"at the margin, {rows:,} rows, {name}, {seeds} seeds"
        if name == "unknown":
            yield _counted(what, words, "any: an interval of seeds alone, in words", limit=None)
        else:
            yield _counted(what, words)
    for most, looked in product((5, 10), (True, False)):
        words = [topped_up(most, looked, rng) for _ in range(tables)]
        what = f"at the margin, 3 seeds topped up to {most}"
        if looked:
            yield _counted(what, words)
        else:
            yield _counted(f"{what}, fixed level", words, "any: why it is not done", limit=None)


LOST = (ACCURACY, ACCURACY - MARGIN)


def _counted(
    name: str,
    words: list[str],
    why: str = "any",
    *,
    limit: float | None = LIMIT,
    false: str = SUFFICES,
) -> Hard:
    shares = {word: words.count(word) / len(words) for word in (false, SUFFICES)}
    return Hard(name=name, false=shares[false], suffices=shares[SUFFICES], why=why, limit=limit)


def topped_up(most: int, looked: bool, rng: np.random.Generator) -> str:
    """Return what adding seeds while the verdict is open ends in, for a loss of the margin."""
    accuracies = np.array(LOST)[:, None] + SPREAD * rng.standard_normal((2, most))
    for seeds in range(FIRST, most + 1):
        results = of_accuracies(accuracies[:, :seeds], 1000 * MANY)
        word = said(replace(results, most_seeds=most if looked else None))
        if word != UNDECIDED:
            break
    return word


def _print_hard(tables: int, rng: np.random.Generator) -> bool:
    print(f"\nwhere means and intervals mislead, {tables:,} comparisons each, false <= {LIMIT:.0%}")
    print(f"  {'':<48} {'false':>7} {'suffices':>9}  false is")
    good = True
    for one in hard(tables, rng):
        fine = one.limit is None or rare(one.false, tables, one.limit)
        good &= fine
        mark = "" if fine else "  <-- too often"
        print(
            f"  {one.name:<48} {one.false:7.2%} {one.suffices:>9.1%}  {one.why}{mark}", flush=True
        )
    return good


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What results of another program tell.

    Args:
        name: of the shape.
        seeds: of the baseline, and of what is compared with it.
        rows: that are tested.
        keep: scores [seeds, rows] as the program writes them.
        same: whether the seeds of both are the same.
        truth: of the answers; "both" has rows that suit one, and seeds that differ.
    """

    name: str
    seeds: tuple[int, int]
    rows: int
    keep: Callable[[np.ndarray], np.ndarray] = np.asarray
    same: bool = True
    truth: Truth = TRUTHS["both"]


def _means(right: np.ndarray) -> np.ndarray:
    return right.mean(axis=1)


FEW_TO_DIFFER = Truth(own=0.3, rest=0.3)  # two models that answer most rows alike
SHAPES = (
    Shape(name="seeds and rows", seeds=(5, 5), rows=500),
    Shape(name="rows, seeds not paired", seeds=(5, 5), rows=500, same=False),
    Shape(name="rows, seeds not paired, unequal", seeds=(8, 4), rows=500, same=False),
    Shape(name="a number a seed", seeds=(5, 5), rows=20_000, keep=_means, truth=Truth(seeds=0.05)),
    Shape(
        name="a number a seed, unequal",
        seeds=(10, 4),
        rows=20_000,
        keep=_means,
        truth=Truth(seeds=0.05),
    ),
    Shape(name="one seed, 100 rows", seeds=(1, 1), rows=100, truth=FEW_TO_DIFFER),
    Shape(name="one seed, 1,000 rows", seeds=(1, 1), rows=1000, truth=FEW_TO_DIFFER),
)


def external(
    shape: Shape, loss: float, tables: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return how often the interval holds a loss, and how often "suffices" is said."""
    covered, words = 0, []
    for _ in range(tables):
        right = shape.truth.answers((ACCURACY, ACCURACY - loss), max(shape.seeds), shape.rows, rng)
        old, new = (
            shape.keep(r[:n].astype(float)) for r, n in zip(right, shape.seeds, strict=True)
        )
        sources = {"old": old, "new": new}
        if old.ndim == 2 and not shape.same:  # noqa: PLR2004
            sources = {name: _frame(scores, name) for name, scores in sources.items()}
        try:
            found = suffice.verdict(sources).judged[0][1].comparisons[0]
        except DataError:  # both answer every row alike
            covered, words = covered + (loss == 0.0), [*words, UNDECIDED]
            continue
        covered += found.difference.low <= -loss <= found.difference.high
        words.append(found.sufficiency)
    return covered / tables, words.count(SUFFICES) / tables


def _frame(scores: np.ndarray, name: str) -> pandas.DataFrame:
    """Return scores as a table whose seeds have labels that no other name has."""
    seeds, rows = np.indices(scores.shape).reshape(2, -1)
    columns = {"seed": [f"{name}{s}" for s in seeds], "row": rows, "score": scores.ravel()}
    return pandas.DataFrame(columns)


def looked(looks: tuple[int, ...], tables: int, rng: np.random.Generator) -> float:
    """Return how often one that loses the margin is said to suffice at any declared look."""
    wrong = 0
    for _ in range(tables):
        scores = np.array(LOST)[:, None] + SPREAD * rng.standard_normal((2, looks[-1]))
        for seeds in looks:
            results = of_accuracies(scores[:, :seeds], 1000 * MANY)
            declared = External(sources={}, pairing=SEEDS_ALONE, looks=looks)
            word = said(replace(_without_heads(results), external=declared))
            if word != UNDECIDED:
                wrong += word == SUFFICES
                break
    return wrong / tables


def _without_heads(results: Results) -> Results:
    return replace(results, cells=tuple(replace(cell, num_heads=0) for cell in results.cells))


def failing_external(rate: float, tables: int, rng: np.random.Generator) -> float:
    """Return how often one of whose unpaired seeds some failed is said to suffice."""
    wrong = 0
    for _ in range(tables):
        old, new = ACCURACY + SPREAD * rng.standard_normal((2, 5))
        fails = rng.random(5) < rate
        found = suffice.verdict({"old": old, "new": new - FAILURE * fails}).judged[0][1]
        wrong += bool(fails.any()) and found.comparisons[0].sufficiency == SUFFICES
    return wrong / tables


def _print_external(tables: int, rng: np.random.Generator) -> bool:
    print(f"\nresults of other programs, {tables:,} tables each")
    print(f"  {'':<34} {'coverage':>9} {'false suffices':>15}")
    good = True
    for shape in SHAPES:
        share, _ = external(shape, 0.0, tables, rng)
        _, false = external(shape, MARGIN, tables, rng)
        fine = share >= 0.93 and rare(false, tables)  # noqa: PLR2004
        good &= fine
        mark = "" if fine else "  <-- not as it should be"
        print(f"  {shape.name:<34} {share:>9.1%} {false:>15.2%}{mark}", flush=True)
    for name, false in (
        ("declared looks at 3, 5, 8 seeds", looked((3, 5, 8), tables, rng)),
        ("a failed seed in five, rate 20%", failing_external(0.2, tables, rng)),
    ):
        good &= rare(false, tables)
        print(f"  {name:<34} {'':>9} {false:>15.2%}", flush=True)
    return good


def both_fail(rate: float, seeds: int, rng: np.random.Generator) -> str:
    """Return what is said of a mechanism that fails as often as the baseline."""
    accuracies = ACCURACY + SPREAD * rng.standard_normal((2, seeds))
    return said(of_accuracies(accuracies - FAILURE * (rng.random((2, seeds)) < rate), MANY))


def bounded_failures(rate: float, seeds: int, failures: float, rng: np.random.Generator) -> str:
    """Return what is said where a rate of failures is asked for."""
    accuracies = ACCURACY + SPREAD * rng.standard_normal((2, seeds))
    accuracies[1] -= FAILURE * (rng.random(seeds) < rate)
    results = of_accuracies(accuracies, MANY)
    return judge(results, failures=failures).comparisons[0].sufficiency


def alike(seeds: int, rows: int, margin: float, same: float, rng: np.random.Generator) -> str:
    """Return what is said where a share `margin` of rows is lost, most of them by every seed."""
    right = rng.random(rows) < ACCURACY
    lost, own = (rng.random((n, rows)) < margin / ACCURACY for n in (1, seeds))
    lost = np.where(rng.random((seeds, rows)) < same, lost, own)
    results = comparison(np.stack([np.broadcast_to(right, lost.shape), right & ~lost]))
    return said(replace(results, margin=margin))


def two_digits(spread: float, rng: np.random.Generator) -> str:
    """Return what is said of three seeds that lose 1.5 points at a margin of 1.2, in percent."""
    truth = rng.uniform(0.8, 0.9)
    old, new = truth - np.array([[0.0], [0.015]]) + spread * rng.standard_normal((2, 3))
    scores = {"old": old.round(2), "new": new.round(2)}
    try:
        return suffice.verdict(scores, margin=0.012).words["new"]
    except DataError:  # the same scores
        return UNDECIDED


def tailed(spread: float, seeds: int, rows: int, rng: np.random.Generator) -> str:
    """Return what is said of losses that are lognormal over rows and at the margin in the mean."""
    margin = float(np.exp(spread**2 / 2))
    base = 10.0 + margin * rng.standard_normal((seeds, rows)) / 10
    lost = rng.lognormal(0.0, spread, rows) + margin * rng.standard_normal((seeds, rows)) / 10
    scores = {"old": base, "new": base + lost}
    return suffice.verdict(scores, metrics=["loss"], margin=margin).words["new"]


def of_groups(groups: int, spread: float, rng: np.random.Generator) -> tuple[bool, str]:
    """Return whether the interval of groups whose sizes fall as 1 / n holds a loss of 1 point."""
    sizes = np.maximum(1, np.round(100 / np.arange(1, groups + 1))).astype(int)
    of_row = np.repeat(np.arange(groups), sizes)
    latent = spread * rng.standard_normal((2, 1, groups))[..., of_row]
    latent = latent + rng.standard_normal((1, 1, len(of_row)))
    latent = latent + 0.5 * rng.standard_normal((2, 5, len(of_row)))
    scale = np.sqrt(spread**2 + 1.25)
    limits = scale * ndtri(np.array([ACCURACY, ACCURACY - MARGIN]))[:, None, None]
    results = comparison(latent < limits)
    rows = {key: replace(kept, group=of_row) for key, kept in results.rows.items()}
    found = judge(replace(results, rows=rows)).comparisons[0]
    return found.difference.low <= -MARGIN <= found.difference.high, found.sufficiency


def of_tasks(rng: np.random.Generator) -> tuple[bool, str]:
    """Return whether the interval of a mean over tasks of unequal rows holds a loss of 1."""
    frames = []
    for number, rows in enumerate((30, 200, 800)):
        lost = np.stack([np.zeros(rows), 1.0 + rng.standard_normal(rows)])
        columns = {"row": np.arange(rows), "task": f"t{number}"}
        frames.append([pandas.DataFrame({**columns, "loss": of + 9.0}) for of in lost])
    sources = dict(zip(("old", "new"), map(pandas.concat, zip(*frames, strict=True)), strict=True))
    found = suffice.verdict(sources, margin=1.0).over_tasks[0][1].comparisons[0]
    return found.difference.low <= -1.0 <= found.difference.high, found.sufficiency


def samples(tables: int, rng: np.random.Generator) -> Iterator[tuple[str, float, float, bool]]:
    """Yield name, rate and limit of each case of few, unequal or rounded samples.

    The rate is that of what is said falsely, at most the limit; or of coverage, at least the limit.
    """

    def rate(name: str, draw: Callable[[], str], false: str = SUFFICES, limit: float = LIMIT):
        share = sum(draw() == false for _ in range(tables)) / tables
        return name, share, limit, rare(share, tables, limit)

    for seeds in (5, 10):
        draw = partial(both_fail, 0.1, seeds, rng)
        yield rate(f'both fail in 10% of {seeds} seeds: "{FAILS}"', draw, FAILS)
    for seeds in (5, 14):
        draw = partial(bounded_failures, 0.25, seeds, 0.2, rng)
        yield rate(f'fails in 25% of {seeds} seeds, failures=0.2: "suffices"', draw)
    for seeds, rows, margin in ((5, 100, 0.01), (5, 200, 0.01), (3, 300, 0.01), (3, 100, 0.02)):
        for same in (0.9, 0.5):
            draw = partial(alike, seeds, rows, margin, same, rng)
            yield rate(f"{seeds} x {rows} rows, {same:.0%} of what is lost is shared", draw)
    for spread in (0.001, 0.003):
        draw = partial(two_digits, spread, rng)
        yield rate(f"two digits, seeds spread by {100 * spread:g} points", draw)
    for spread, (seeds, rows) in product((1.0, 1.5, 2.0), ((1, 50), (1, 200), (1, 1000), (3, 200))):
        draw = partial(tailed, spread, seeds, rows, rng)
        name = f"lognormal losses, sd-log {spread:g}, {seeds} x {rows:,} rows"
        yield rate(name, draw, limit=TAILED)
    cases: dict[str, Callable[[], tuple[bool, str]]] = {
        f"{groups} groups of 100 / n rows, sd of groups {spread:g}": partial(
            of_groups, groups, spread, rng
        )
        for groups, spread in product((20, 60), (0.3, 1.0))
    }
    for name, draw in {
        **cases,
        "mean over tasks of 30, 200, 800 rows": partial(of_tasks, rng),
    }.items():
        found = [draw() for _ in range(tables)]
        covered = sum(covers for covers, _ in found) / tables
        yield f"{name}: covers", covered, COVERS, rare(1 - covered, tables, 1 - COVERS)
        false = sum(word == SUFFICES for _, word in found) / tables
        yield f"{name}: falsely suffices", false, LIMIT, rare(false, tables)


TAILED, COVERS = 0.05, 0.94


def _print_samples(tables: int, rng: np.random.Generator) -> bool:
    print(f"\nfew, unequal or rounded samples, a loss of the margin, {tables:,} comparisons each")
    good = True
    for name, share, limit, fine in samples(tables, rng):
        good &= fine
        mark = "" if fine else "  <-- not as it should be"
        print(f"  {name:<68} {share:7.2%} {limit:>5.0%}{mark}", flush=True)
    return good


FIXED, MOST = 10, 12
LOSSES = (0.0, 1.0, 3.0)
SEQUENTIAL = Truth(own=0.05, seeds=0.012, rest=0.5)
SEQUENTIAL_ROWS = 10_000


def main() -> int:
    """Print the tables, and return 1 if a rate is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=TABLES, help="simulated for each figure")
    parser.add_argument("--part", choices=PARTS, help="one part alone")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    parts = PARTS if asked.part is None else (asked.part,)
    good = [PARTS[name](asked.tables, rng) for name in parts]  # prints them all
    return 0 if all(good) else 1


def _print_claims(tables: int, rng: np.random.Generator) -> bool:
    good = True
    print(f"\nfalse claims in {tables:,} comparisons of 5 seeds and 500 rows (simulation)")
    for what, rate, right in rates(tables, rng):
        good &= right
        print(f"  {what:<72} {rate:7.2%}{'' if right else '  <-- too often'}")
    return good


def _print_coverage(tables: int, rng: np.random.Generator) -> bool:
    print(f"coverage of the 95% interval over seeds and rows, {tables:,} tables each")
    print(f"  {'':<14} {'rows':>7} " + "".join(f"{f'{seeds} seeds':>10}" for seeds in SEEDS))
    good = True
    for name, truth in TRUTHS.items():
        for rows in ROWS:
            shares = [coverage(truth, seeds, rows, tables, rng) for seeds in SEEDS]
            good &= all(0.93 <= share <= 0.97 for share in shares)  # noqa: PLR2004
            print(
                f"  {name:<14} {rows:>7,} " + "".join(f"{share:>10.1%}" for share in shares),
                flush=True,
            )
    print(f"  (below {MIN_SEEDS} seeds a report shows no interval)")
    return good


def _print_sequential(tables: int, rng: np.random.Generator) -> bool:
    print(
        f"\nseeds added while the verdict is open, at most {MOST}, against {FIXED} fixed; "
        f"{SEQUENTIAL_ROWS:,} rows, {tables:,} comparisons each"
    )
    print(
        f"  {'true loss':<11} {'suffices':>10} {'fixed':>8} {'fails':>8} {'fixed':>8} "
        f"{'seeds':>7} {'of fixed':>9}"
    )
    good = True
    for loss in LOSSES:
        runs = sequential(SEQUENTIAL, loss, MOST, SEQUENTIAL_ROWS, tables, rng)
        held = fixed(SEQUENTIAL, loss, FIXED, SEQUENTIAL_ROWS, tables, rng)
        share = runs.seeds / FIXED
        good &= share <= 0.6 and (loss < 1.0 or rare(runs.suffices, tables))  # noqa: PLR2004
        print(
            f"  {loss:.0f} margins   {runs.suffices:>10.1%} {held.suffices:>8.1%} "
            f"{runs.fails:>8.1%} {held.fails:>8.1%} {runs.seeds:>7.2f} {share:>9.2f}",
            flush=True,
        )
    return good


PARTS = {
    "coverage": _print_coverage,
    "claims": _print_claims,
    "hard": _print_hard,
    "sequential": _print_sequential,
    "external": _print_external,
    "samples": _print_samples,
}


if __name__ == "__main__":
    sys.exit(main())
