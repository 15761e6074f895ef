"""Whether a baseline learned: its score above the best of a model that read nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from suffice.comparison.answers import majority_baseline, spread
from suffice.comparison.metrics import METRICS
from suffice.comparison.results import OWN_LOOP
from suffice.comparison.scores import Scores, summary_of
from suffice.comparison.sufficiency import LEVEL
from suffice.comparison.two_way_interval import EXACT
from suffice.utils.statistics import ABOVE, Summary

TELLING = ("log-loss", "balanced", "accuracy")  # scores of classes, the one that tells most first
GUESS, NO_READER = "a blind guess", "a model that learned nothing"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The score of a model that learned nothing, and the baseline above it."""

    name: str  # name of such a model, such as 'always "5"'
    metric: str  # name of the metric
    value: float  # the metric of it, oriented
    above: Summary  # the baseline minus that, with an interval of `confidence` where there is one
    confidence: float = LEVEL  # 0.95, or more where several scores are looked at
    # whether the baseline is shown to be above, by the score that tells most, and its mean by more
    # than the margin; None where it cannot be tested. An interval that holds 0 shows nothing either
    # way.
    learned: bool | None
    # the same in the metric that shows it, where that is another; None elsewhere
    shown_by: Floor | None = None


def floor_of(scores: Scores, num_heads: int, margin: float) -> Floor | None:
    """Return the score of learning nothing, and whether the baseline is above it.

    Where the answers to rows with classes were kept, log-loss against the frequencies of the
    classes, balanced accuracy and accuracy are looked at in this order, and share the error rate:
    accuracy alone shows little on few rows. A verdict needs a score above by more than the margin.

    Args:
        scores: scores of the metric of the verdict.
        num_heads: heads of the baseline.
        margin: margin of the verdict.
    """
    results = scores.results
    classes = results.data is not None and bool(results.data.classes)
    others = [name for name in TELLING if classes and name != scores.metric.name]
    shown = {
        name: floor
        for name in others
        if _by_row(of_name := Scores(results, METRICS[name]), num_heads)
        and (floor := _above(of_name, num_heads, 1 + len(others)))
    }
    own = _above(scores, num_heads, 1 + len(shown))
    if own is None:
        return None
    if not own.learned:
        shown_by = next((floor for floor in shown.values() if floor.learned), None)
        own = own if shown_by is None else replace(own, learned=True, shown_by=shown_by)
    if own.learned and own.above.mean <= margin + EXACT:  # who learned nothing would suffice
        return replace(own, learned=False)
    return own


def _above(scores: Scores, num_heads: int, looks: int) -> Floor | None:
    results, metric = scores.results, scores.metric
    seeds = list(scores.values(results.baseline, num_heads))
    candidates = _candidates(scores, num_heads)
    if not candidates:
        return None
    table = scores.table(results.baseline, num_heads, seeds)
    name, of_rows = max(candidates, key=lambda candidate: float(np.nanmean(candidate[1])))
    above = table - of_rows
    by_seed = np.nanmean(above, axis=1).tolist()
    if not all(map(math.isfinite, by_seed)):
        return None
    alpha = (1.0 - LEVEL) / looks
    summary = summary_of(by_seed, scores.estimate(above), alpha)
    noise = scores.noise(results.baseline, num_heads)
    return Floor(
        name=name,
        metric=metric.name,
        value=float(np.nanmean(of_rows)),
        above=summary,
        confidence=1.0 - alpha,
        learned=_learned(summary, scores.by_sample(above), noise),
    )


def _by_row(scores: Scores, num_heads: int) -> bool:
    cells = scores.results.select(scores.results.baseline, num_heads)
    return all(scores.rows(cell.key) is not None for cell in cells)


def _candidates(scores: Scores, num_heads: int) -> list[tuple[str, np.ndarray]]:
    results, survey, metric = scores.results, scores.results.data, scores.metric
    answers = scores.answers(results.baseline, num_heads)
    guess = None if answers is None or survey is None else majority_baseline(answers, survey)
    known = survey is not None and survey.majority_class is not None
    constant = f'always "{survey.majority_class}"' if known else "always the most frequent class"
    frequencies = "answering with the training frequencies"
    loss = metric.name in ("log-loss", "perplexity")
    candidates: list[tuple[str, np.ndarray]] = []
    if guess is not None and _by_row(scores, num_heads):
        of_rows = spread([metric.rows(guess)], [guess])
        candidates.append((frequencies if loss else constant, of_rows))
    elif metric.name == "accuracy" and results.majority is not None:
        candidates.append((constant, np.array([results.majority])))
    if metric.rows is METRICS["accuracy"].rows and results.chance is not None:
        name = NO_READER if results.task == OWN_LOOP else GUESS
        candidates.append((name, np.array([results.chance])))
    frequency_loss = None if survey is None else survey.frequency_loss
    if loss and frequency_loss is not None and not candidates:
        candidates.append((frequencies, -np.array([frequency_loss])))
    return candidates


def _learned(summary: Summary, above: np.ndarray, noise: float) -> bool | None:
    if summary.mean <= 0.0:
        return False
    rows = above.shape[1]
    if rows == 1:
        error = noise
    else:
        tested = above[:, ~np.isnan(above).all(axis=0)]
        error = float(np.nanmean(tested, axis=0).std(ddof=1)) / math.sqrt(tested.shape[1])
    if summary.low is not None:
        return summary.low > 0.0 and (rows > 1 or summary.mean > ABOVE * error)
    return summary.mean > ABOVE * error if error else None
