"""The verdict in plain English, with its limitations."""

from __future__ import annotations

import dataclasses
from typing import Any

from suffice.measure.results import Results
from suffice.measure.statistics import Summary
from suffice.measure.timing import ratio
from suffice.measure.verdict import ALPHA, CAP, Comparison, Verdict
from suffice.recipes import SMALL
from suffice.records import encode


def count_heads(num_heads: int) -> str:
    """Write a number of heads.

    Example:
        >>> count_heads(1), count_heads(4)
        ('1 head', '4 heads')
    """
    return f"{num_heads} head{'s' if num_heads != 1 else ''}"


def label(mechanism: str, num_heads: int) -> str:
    """Name one (mechanism, heads).

    Example:
        >>> label("efficient", 1)
        'efficient (1 head)'
    """
    return f"{mechanism} ({count_heads(num_heads)})"


def points(difference: float) -> str:
    """Write a difference of accuracies in points, signed unless it is zero.

    Example:
        >>> points(-0.002), points(0.0), points(0.0004)
        ('-0.20', '0.00', '+0.04')
    """
    text = f"{100 * difference:+.2f}"
    return text[1:] if float(text) == 0.0 else text


def margin_points(margin: float) -> str:
    """Write a margin in points.

    Example:
        >>> margin_points(0.01), margin_points(0.0025)
        ('1.0', '0.25')
    """
    tenths = f"{100 * margin:.1f}"
    return tenths if abs(float(tenths) - 100 * margin) < 1e-9 else f"{100 * margin:.3g}"


def decision(comparison: Comparison) -> str:
    """Write whether one mechanism suffices, and what would decide it.

    Returns:
        "suffices", "does not suffice" or "undecided: ..." with the seeds that are missing.
    """
    if comparison.sufficiency != "undecided":
        return comparison.sufficiency
    return f"undecided: {_missing(comparison)}"


def sentence(verdict: Verdict, results: Results) -> str:
    """Return one sentence that names the mechanism that suffices and its numbers."""
    if verdict.winner is None:
        return _sentence_baseline(verdict)
    name = label(verdict.winner.mechanism, verdict.winner.num_heads)
    evidence = _evidence(verdict, verdict.winner)
    needs = _needs(results, verdict.winner)
    if verdict.outcome == "suffices":
        return f"{name} suffices: {evidence}; it needs {needs}."
    return (
        f"undecided: {_missing(verdict.winner)}; {name} may suffice: {evidence}; it needs {needs}."
    )


def notes(verdict: Verdict, results: Results) -> list[str]:
    """List what else the comparison did and did not establish, one sentence each."""
    sentences = [] if results.scale == "paper" else [f"{SMALL.capitalize()}."]
    if verdict.winner is not None:
        sentences += [_note_claim(verdict, verdict.winner), *_note_other_heads(verdict)]
    sentences += [_note_undecided(c) for c in _open_cheaper(verdict)]
    sentences += [_note_left_out(verdict, c) for c in verdict.comparisons if c.pairing.left_out]
    if len(verdict.comparisons) > 1:
        sentences.append(
            f"Each 95% interval holds for its own mechanism, uncorrected for the "
            f"{len(verdict.comparisons)} compared; better and worse are corrected "
            f"(Holm, alpha {ALPHA})."
        )
    sentences += _note_answers(results)
    sentences += _note_signatures(results)
    sentences.append(
        f"The seeds vary weights and data order on {results.task}; other data, sizes, training "
        "lengths and hyperparameters were not tried."
    )
    return sentences


def _note_signatures(results: Results) -> list[str]:
    """Name how scores that have variants were computed."""
    named = [item for cell in results.cells for item in cell.signatures.items()]
    return [f"Signature of {name}: {signature}" for name, signature in dict.fromkeys(named)]


def verdict_record(verdict: Verdict, results: Results) -> dict[str, Any]:
    """Return the verdict as plain values for JSON, with its sentence and notes."""
    return {
        "sentence": sentence(verdict, results),
        "notes": notes(verdict, results),
        **encode(dataclasses.asdict(verdict)),
    }


def _missing(comparison: Comparison) -> str:
    n = len(comparison.pairing.seeds)
    if n == 0:
        return "the baseline has no seed in common with it at this number of heads"
    if n == 1:
        return "a single seed gives no interval, train 5"
    if comparison.more_seeds is None:
        return (
            f"more seeds will not decide it at this margin (up to {CAP} more, if mean and sd stay)"
        )
    return f"about {comparison.more_seeds} more seed{'s' if comparison.more_seeds != 1 else ''}"


def _evidence(verdict: Verdict, comparison: Comparison) -> str:
    ours = f"test accuracy {_accuracy(comparison.accuracy)}"
    baseline = verdict.accuracies.get(comparison.num_heads)
    margin = f"margin {margin_points(verdict.margin)}"
    if baseline is None or comparison.difference is None:
        return f"{ours}, {margin}"
    return (
        f"{ours} against {verdict.baseline}'s {_accuracy(baseline)}, "
        f"difference {interval(comparison.difference)}, {margin}"
    )


def _accuracy(summary: Summary) -> str:
    if summary.sd is None:
        return f"{summary.mean:.1%} (1 seed)"
    return f"{summary.mean:.1%} (sd {100 * summary.sd:.1f}, {summary.n} seeds)"


def interval(difference: Summary) -> str:
    """Write a mean difference with its interval, in points.

    Example:
        >>> interval(Summary(n=5, mean=-0.002, sd=0.004, low=-0.007, high=0.003))
        '-0.20 points, 95% CI [-0.70, +0.30]'
        >>> interval(Summary(n=1, mean=-0.002, sd=None, low=None, high=None))
        '-0.20 points, no interval from one seed'
    """
    text = f"{points(difference.mean)} points"
    if difference.sd is None:
        return f"{text}, no interval from one seed"
    return f"{text}, 95% CI [{points(difference.low)}, {points(difference.high)}]"


def _needs(results: Results, comparison: Comparison) -> str:
    """Write what the mechanism costs as a share of the baseline with as many heads."""
    heads = comparison.num_heads
    ours = results.select(comparison.mechanism, heads)[0]
    theirs = results.select(results.baseline, heads)[0]
    parts = []
    if theirs.flops:
        parts.append(f"{ours.flops / theirs.flops:.2f}x the FLOPs")
    fast = results.speed(comparison.mechanism, heads)
    slow = results.speed(results.baseline, heads)
    if fast is not None and slow is not None and len(fast.latency) == len(slow.latency):
        parts.append(f"{ratio(fast.latency, slow.latency):.2f}x the time")
    if comparison.cost.by == "parameters" or not parts:
        share = ours.parameters_model / max(1, theirs.parameters_model)
        parts.append(f"{share:.2f}x the parameters")
    return " and ".join(parts)


def _sentence_baseline(verdict: Verdict) -> str:
    """State that nothing cheaper suffices, and how far off the nearest is."""
    best = max(verdict.accuracies.items(), key=lambda item: item[1].mean)
    accuracy = f"{label(verdict.baseline, best[0])} has test accuracy {_accuracy(best[1])}"
    cheaper = [c for c in verdict.comparisons if c.cheaper]
    if not cheaper:
        return (
            f"{verdict.baseline} stays: nothing cheaper by {verdict.by} was compared; {accuracy}."
        )
    nearest = max(cheaper, key=lambda c: c.difference.mean)
    return (
        f"{verdict.baseline} stays: no cheaper mechanism suffices; "
        f"the nearest, {label(nearest.mechanism, nearest.num_heads)}, has "
        f"{_evidence(verdict, nearest)}."
    )


def _open_cheaper(verdict: Verdict) -> list[Comparison]:
    """List undecided comparisons other than the named one that might have been named."""
    return [
        c
        for c in verdict.comparisons
        if c.cheaper
        and c.sufficiency == "undecided"
        and c is not verdict.winner
        and (verdict.outcome != "suffices" or c.cost.order < verdict.winner.cost.order)
    ]


def _note_answers(results: Results) -> list[str]:
    """State what an accuracy counts, where that is not rows, and what a guess would have."""
    sentences = []
    if results.answers != 1.0:
        sentences.append(
            f"A row asks for {results.answers:.3g} answers; accuracies and losses are over answers."
        )
    if results.chance is not None:
        sentences.append(
            f"A guess that has not found the answer has an accuracy of {results.chance:.1%}."
        )
    return sentences


def _note_claim(verdict: Verdict, winner: Comparison) -> str:
    name = label(winner.mechanism, winner.num_heads)
    if winner.p_value is None:
        return f"Whether {name} differs from {verdict.baseline} was not tested; it takes 3 seeds."
    p_value = f"paired t-test, Holm-corrected p = {winner.p_value:.2g}"
    if winner.claim == "no difference":
        return (
            f"Not shown that {name} is better or worse than {verdict.baseline} ({p_value}); "
            "that none was found is no proof of equality."
        )
    return f"{name} is {winner.claim} than {verdict.baseline} ({p_value}), whatever the margin."


def _note_other_heads(verdict: Verdict) -> list[str]:
    """Warn where the baseline does better with another number of heads."""
    heads = verdict.winner.num_heads
    best = max(verdict.accuracies, key=lambda h: verdict.accuracies[h].mean)
    if best == heads or heads not in verdict.accuracies:
        return []
    return [
        f"Mechanisms are compared at equal heads: {label(verdict.baseline, best)} has "
        f"{_accuracy(verdict.accuracies[best])}, which was not held against "
        f"{label(verdict.winner.mechanism, heads)}."
    ]


def _note_undecided(comparison: Comparison) -> str:
    return f"{label(comparison.mechanism, comparison.num_heads)} is {decision(comparison)}."


def _note_left_out(verdict: Verdict, comparison: Comparison) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.pairing.left_out)
    return (
        f"{label(comparison.mechanism, comparison.num_heads)} and {verdict.baseline} share "
        f"{len(comparison.pairing.seeds)} seeds; not in both, so not paired: {seeds}."
    )
