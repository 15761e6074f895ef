"""Whether a baseline learned: its score above the best of a model that read nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suffice.measure.answers import majority_baseline, spread
from suffice.measure.metrics import METRICS
from suffice.measure.scores import Scores, summary_of
from suffice.measure.statistics import ABOVE, Summary
from suffice.measure.sufficiency import LEVEL
from suffice.measure.two_way_interval import EXACT


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The score of a model that learned nothing, and the baseline above it.

    Args:
        name: name of such a model, such as 'always "5"'.
        value: the metric of it, oriented.
        above: the baseline minus that, with a 95% interval where there is one.
        learned: whether the baseline is clearly above, and by more than the margin; None where it
            cannot be said.
    """

    name: str
    value: float
    above: Summary
    learned: bool | None


def floor_of(scores: Scores, num_heads: int, margin: float) -> Floor | None:
    """Hold the baseline against the best model that learned nothing."""
    results = scores.results
    seeds = list(scores.values(results.baseline, num_heads))
    table = scores.table(results.baseline, num_heads, seeds)
    answers = scores.answers(results.baseline, num_heads)
    survey, metric = results.data, scores.metric
    guess = None if answers is None or survey is None else majority_baseline(answers, survey)
    candidates: list[tuple[str, np.ndarray]] = []
    if guess is not None and metric.rows is not None and table.shape[1] > 1:
        of_rows = spread([metric.rows(guess)], [guess])
        candidates.append((f'always "{survey.majority_class}"', of_rows))
    elif metric.name == "accuracy" and results.majority is not None:
        known = survey is not None and survey.majority_class is not None
        name = f'always "{survey.majority_class}"' if known else "always the most frequent class"
        candidates.append((name, np.array([results.majority])))
    if metric.rows is METRICS["accuracy"].rows and results.chance is not None:
        candidates.append(("a blind guess", np.array([results.chance])))
    frequency_loss = None if survey is None else survey.frequency_loss
    if metric.name in ("log-loss", "perplexity") and frequency_loss is not None and not candidates:
        name = "answering with the training frequencies"
        candidates.append((name, -np.array([frequency_loss])))
    if not candidates:
        return None
    name, of_rows = max(candidates, key=lambda candidate: float(np.nanmean(candidate[1])))
    above = table - of_rows
    by_seed = np.nanmean(above, axis=1).tolist()
    if not all(map(math.isfinite, by_seed)):
        return None
    summary = summary_of(by_seed, scores.estimate(above), 1.0 - LEVEL)
    learned = _learned(summary, scores.by_sample(above), scores.noise(results.baseline, num_heads))
    if learned and summary.mean <= margin + EXACT:  # who learned nothing would suffice
        learned = False
    return Floor(
        name=name,
        value=float(np.nanmean(of_rows)),
        above=summary,
        learned=learned,
    )


def _learned(summary: Summary, above: np.ndarray, noise: float) -> bool | None:
    """Return whether a mean is clearly above 0, by seeds and by rows, kept or counted."""
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
