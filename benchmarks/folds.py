"""How often the interval over folds holds the truth, where training sets overlap.

Tables are drawn and cut into folds, two learners are trained on all but one fold and tested on it,
and the interval of the difference of their accuracies is held against the expected one, which is
the mean over all tables. Learners are cheap, so that thousands of tables are possible: least
squares on features, on random features that each seed draws, or the nearest mean. With IMDB's
reviews in $SUFFICE_DATA, `--trained` cuts 40,000 of them into ten tables of 4,000, in several ways,
and trains networks on bags of words with early stopping.

    python -m benchmarks.folds                  # 1,000 tables of each case, some minutes
    python -m benchmarks.folds --trained 4      # and four ways to cut real reviews
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from suffice.comparison.two_way_interval import estimate_folds
from suffice.data.dataset import folds_of_keys
from suffice.utils.statistics import t_quantile

Learner = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""From training inputs, labels (0, 1) and test inputs to predictions."""
HELD_OUT = 0.1  # of the rows, for validation; they are not trained on


def least_squares(width: float = 1.0, ridge: float = 1.0) -> Learner:
    """Return least squares on the first share `width` of the features."""

    def learner(x: np.ndarray, y: np.ndarray, test: np.ndarray, _: object) -> np.ndarray:
        used = round(width * x.shape[1])
        gram = x[:, :used].T @ x[:, :used] + ridge * np.eye(used)
        return test[:, :used] @ np.linalg.solve(gram, x[:, :used].T @ (2 * y - 1)) > 0

    return learner


def random_features(features: int) -> Learner:
    """Return least squares on random features, which differ from seed to seed."""

    def learner(
        x: np.ndarray, y: np.ndarray, test: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        maps = rng.normal(size=(x.shape[1], features)) / np.sqrt(x.shape[1])
        return least_squares()(np.tanh(x @ maps), y, np.tanh(test @ maps), rng)

    return learner


def nearest_mean(x: np.ndarray, y: np.ndarray, test: np.ndarray, _: object) -> np.ndarray:
    """Predict the class with the nearer mean."""
    means = [x[y == label].mean(axis=0) for label in (0, 1)]
    return test @ (means[1] - means[0]) > (means[1] @ means[1] - means[0] @ means[0]) / 2


@dataclass(frozen=True)
class Case:
    """Tables of so many rows and features, and two learners."""

    rows: int
    features: int
    folds: int
    learners: tuple[Learner, Learner]

    def table(self, rng: np.random.Generator) -> np.ndarray:
        """Return differences of right answers [folds, rows], NaN where a fold is not tested."""
        weights = np.ones(self.features) * 1.5 / np.sqrt(self.features)
        x = rng.normal(size=(self.rows, self.features))
        y = (x @ weights + rng.normal(size=self.rows) > 0).astype(np.int64)
        place = np.empty(self.rows, dtype=np.int64)
        place[np.argsort(y + rng.random(self.rows))] = np.arange(self.rows) % self.folds
        scores = np.full((self.folds, self.rows), np.nan)
        for fold in range(self.folds):
            tested = place == fold
            train = rng.permutation(np.flatnonzero(~tested))[round(HELD_OUT * self.rows) :]
            ours, theirs = (
                f(x[train], y[train], x[tested], rng) == y[tested] for f in self.learners
            )
            scores[fold, tested] = ours.astype(float) - theirs
        return scores


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    half, whole, drawn = least_squares(0.5), least_squares(), random_features(40)
    return {
        "half of the features, 200 rows": Case(200, 20, 5, (half, whole)),
        "half of the features": Case(1000, 40, 5, (half, whole)),
        "half of the features, 3 folds": Case(1000, 40, 3, (half, whole)),
        "half of the features, 10 folds": Case(1000, 40, 10, (half, whole)),
        "strong ridge": Case(1000, 40, 5, (least_squares(ridge=1000.0), whole)),
        "nearest mean": Case(1000, 40, 5, (nearest_mean, whole)),
        "seeds differ": Case(1000, 20, 5, (drawn, drawn)),
        "seeds differ, 4,000 rows": Case(4000, 20, 5, (drawn, drawn)),
        "seeds differ strongly": Case(1000, 20, 5, (random_features(8), random_features(8))),
        "seeds differ, 10 folds": Case(1000, 20, 10, (random_features(20), drawn)),
    }


METHODS = ("independent", "Nadeau-Bengio", "ours")


def half_widths(scores: np.ndarray, folds: int, level: float = 0.95) -> dict[str, float]:
    """Return half the interval of each method."""
    means = np.nanmean(scores, axis=1)
    student = t_quantile(level, len(means) - 1) * means.std(ddof=1)
    return {
        "independent": student * np.sqrt(1 / folds),
        "Nadeau-Bengio": student * np.sqrt(1 / folds + 1 / (folds - 1)),
        "ours": float(estimate_folds(scores, folds).half_width(1 - level)),
    }


@dataclass(frozen=True)
class Rates:
    """What became of the tables of a case: shares by method, and their variance.

    Args:
        coverage: how often the interval holds the truth.
        false: how often it lies above the truth, so that a mechanism that loses exactly the margin
            is said to suffice.
        width: mean half width, in points.
        inflation: variance of the mean over tables, as a multiple of that of independent rows.
    """

    coverage: dict[str, float]
    false: dict[str, float]
    width: dict[str, float]
    inflation: float


def rates(tables: list[np.ndarray], folds: int) -> Rates:
    """Return how often intervals hold the mean over all tables."""
    means = np.array([np.nanmean(np.nanmean(table, axis=1)) for table in tables])
    truth, halves = means.mean(), [half_widths(table, folds) for table in tables]
    rows = np.mean([np.nanvar(table) / (~np.isnan(table)).sum() for table in tables])
    columns = {method: np.array([half[method] for half in halves]) for method in METHODS}
    return Rates(
        coverage={m: float((abs(means - truth) <= half).mean()) for m, half in columns.items()},
        false={m: float((means - half > truth).mean()) for m, half in columns.items()},
        width={m: float(100 * half.mean()) for m, half in columns.items()},
        inflation=float(means.var(ddof=1) / rows),
    )


def line(name: str, found: Rates) -> str:
    """Write the rates of a case."""
    parts = [
        f"{found.coverage[m]:>8.1%}{found.false[m]:>7.1%}{found.width[m]:>6.2f}" for m in METHODS
    ]
    return f"  {name:<34}{found.inflation:>6.2f}" + " ".join(parts)


def is_right(found: Rates, tables: int) -> bool:
    """Return whether our interval covers 93 to 98% and is above the truth in at most 3%.

    Two standard errors of the simulation are allowed for.
    """
    chance = 2.0 * np.sqrt(0.03 * 0.97 / tables)
    within = 0.93 - chance <= found.coverage["ours"] <= 0.98 + chance
    return bool(within and found.false["ours"] <= 0.03 + chance)


# trained networks

TABLE_ROWS, TABLE_COUNT, VOCABULARY = 4000, 10, 1500
HIDDEN = {"linear": 0, "4 units": 4, "32 units": 32}
EPOCHS, BATCH = 4, 64


def bags() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 40,000 reviews as bags of words, and their classes."""
    from suffice.data import load

    data = load("imdb", length=128, vocabulary_size=VOCABULARY)
    parts = (data.train, data.validation, data.test)
    tokens, labels = (torch.cat([getattr(p, n) for p in parts]) for n in ("inputs", "labels"))
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
    order = order[: TABLE_ROWS * TABLE_COUNT]
    bag = torch.zeros(len(order), VOCABULARY).scatter_(1, tokens[order], 1.0)
    return bag[:, 3:], labels[order]


def trained(
    x: torch.Tensor, y: torch.Tensor, hidden: int, seed: int, part: np.ndarray
) -> np.ndarray:
    """Return right answers on the rows of part 2 of a network that part 1 stops early."""
    torch.manual_seed(seed)
    layers = [nn.Linear(x.shape[1], hidden), nn.ReLU()] if hidden else []
    model = nn.Sequential(*layers, nn.Linear(hidden or x.shape[1], 2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train, validation, test = (torch.from_numpy(np.flatnonzero(part == n)) for n in range(3))
    best, right = np.inf, np.empty(0)
    for _ in range(EPOCHS):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        with torch.inference_mode():
            loss = float(cross_entropy(model(x[validation]), y[validation]))
            if loss < best:
                best, right = loss, (model(x[test]).argmax(dim=1) == y[test]).numpy()
    return right.astype(float)


def real_tables(ways: int, folds: int) -> dict[str, list[np.ndarray]]:
    """Return the differences of two networks on ten tables, cut in several ways, by their names."""
    x, y = bags()
    tables: dict[str, list[np.ndarray]] = {}
    for way in range(ways):
        order = np.random.RandomState(way + 1).permutation(len(y))
        for number, rows in enumerate(order.reshape(TABLE_COUNT, TABLE_ROWS)):
            inputs, labels = x[rows], y[rows]
            pairs = [
                (str(row), str(label)) for row, label in zip(rows, labels.tolist(), strict=True)
            ]
            place = folds_of_keys(pairs, folds, turn=way)
            fold_of = np.array([place[key] for key, _ in pairs])
            right = {name: np.full((folds, TABLE_ROWS), np.nan) for name in HIDDEN}
            for fold in range(folds):
                part = np.where(fold_of == fold, 2, 0)
                others = np.random.RandomState(fold).permutation(np.flatnonzero(part == 0))
                part[others[: round(HELD_OUT * TABLE_ROWS)]] = 1
                for name, hidden in HIDDEN.items():
                    seed = 1000 * (TABLE_COUNT * way + number) + fold
                    right[name][fold, part == 2] = trained(inputs, labels, hidden, seed, part)
            names = list(HIDDEN)
            for ours, theirs in ((1, 0), (2, 0), (2, 1)):
                key = f"{names[ours]} and {names[theirs]}"
                tables.setdefault(key, []).append(right[names[ours]] - right[names[theirs]])
    return tables


def main() -> int:
    """Print the tables, and return 1 if an interval of ours is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=1000, help="drawn for each case")
    parser.add_argument("--trained", type=int, default=0, help="ways to cut real reviews")
    options = parser.parse_args()
    print(f"95% intervals of a difference over folds, {options.tables:,} tables each; for each")
    print("method: coverage, how often above the truth, half width in points")
    print(f"  {'':<34}{'var.':>6}" + " ".join(f"{method:>21}" for method in METHODS))
    good = True
    for number, (name, case) in enumerate(cases().items()):
        rng = np.random.default_rng(number)
        found = rates([case.table(rng) for _ in range(options.tables)], case.folds)
        good &= is_right(found, options.tables)
        print(line(name, found), flush=True)
    if options.trained:
        print(
            f"networks on {TABLE_COUNT} tables of {TABLE_ROWS:,} reviews each, cut in "
            f"{options.trained} ways"
        )
        for name, tables in real_tables(options.trained, 5).items():
            print(line(name, rates(tables, 5)), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
