"""The verdict in plain English, with its limitations."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from suffice.comparison.cost_to_target import effort_record
from suffice.comparison.metrics import LOGARITHMS, MARGIN, METRICS, Metric, metric_of
from suffice.comparison.results import OWN_LOOP, Results
from suffice.comparison.scores import GUESS, MIN_SEEDS, NO_READER, Scores, difference_table
from suffice.comparison.sufficiency import (
    FAILS,
    LEVEL,
    SUFFICES,
    TOO_EASY,
    UNDECIDED,
    UNLEARNED,
    looks_of,
    most_seeds,
)
from suffice.comparison.verdict import (
    ALPHA,
    CEILINGS,
    INSUFFICIENT,
    NOTHING,
    ORDER,
    SUFFICIENT,
    Comparison,
    Verdict,
)
from suffice.train.recipes import SCALES, SMALL
from suffice.utils.records import encode
from suffice.utils.statistics import Summary

MOST_NAMES = 5  # that a sentence lists


def count_heads(num_heads: int) -> str:
    """Write a number of heads.

    Example:
        >>> count_heads(1), count_heads(4)
        ('1 head', '4 heads')
    """
    return f"{num_heads} head{'s' if num_heads != 1 else ''}"


def label(mechanism: str, num_heads: int) -> str:
    """Name one (mechanism, heads); results of another program have no heads.

    Example:
        >>> label("efficient", 1), label("mine", 0)
        ('efficient (1 head)', 'mine')
    """
    return f"{mechanism} ({count_heads(num_heads)})" if num_heads else mechanism


def several(names: Sequence[str]) -> str:
    """Write names; of many the first, and the number of the others.

    Example:
        >>> several(["a", "b"]), several([*"abcdefg"])
        ('a, b', 'a, b, c and 4 more')
    """
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def margin_points(margin: float) -> str:
    """Write a margin in points.

    Example:
        >>> margin_points(0.01), margin_points(0.0025)
        ('1.0', '0.25')
    """
    return METRICS["accuracy"].margin(margin)


def outcome_of(judged: Comparison | Verdict) -> str:
    """Return "suffices", "does not suffice" or "undecided", which stands for all that is open."""
    if isinstance(judged, Verdict):
        return {SUFFICIENT: SUFFICES, INSUFFICIENT: FAILS}.get(judged.code, UNDECIDED)
    return judged.sufficiency if judged.sufficiency in (SUFFICES, FAILS) else UNDECIDED


def reason_of(judged: Comparison | Verdict) -> str:
    """Write what an undecided outcome lacks, and which seeds failed where that decided it."""
    if isinstance(judged, Verdict):
        if judged.outcome in (UNLEARNED, TOO_EASY):
            return judged.outcome
        if judged.code == NOTHING:
            return f"nothing cheaper by {judged.by} was compared"
        return reason_of(judged.winner) if judged.outcome == UNDECIDED else ""
    if judged.sufficiency == FAILS and judged.failed:
        return learned(judged.quality.n, judged.failed)
    if judged.sufficiency == UNDECIDED:
        return _missing(judged)
    return "" if judged.sufficiency in (SUFFICES, FAILS) else judged.sufficiency


def decision(comparison: Comparison) -> str:
    """Write whether one mechanism suffices, and why not.

    Returns:
        "suffices", "does not suffice" or "undecided", and after a colon the reason, if any.
    """
    return ": ".join(filter(None, (outcome_of(comparison), reason_of(comparison))))


def learned(seeds: int, failed: tuple[int, ...]) -> str:
    """Write in how many seeds a mechanism learned.

    Example:
        >>> learned(5, ()), learned(5, (2,)), learned(1, ())
        ('learned in 5 of 5 seeds', 'learned in 4 of 5 seeds (not in 2)', 'learned in 1 of 1 seed')
    """
    but = f" (not in {', '.join(map(str, failed))})" if failed else ""
    return f"learned in {seeds - len(failed)} of {seeds} seed{'s' * (seeds != 1)}{but}"


def claim(comparison: Comparison) -> str:
    """Write whether a difference is shown.

    Returns:
        "better", "worse", "not tested", or "not shown" with its p value and the level it missed.
    """
    if comparison.p_value is None or comparison.claim in ("better", "worse"):
        return comparison.claim
    return f"{comparison.claim} (p = {comparison.p_value:.2g})"


def sentence(verdict: Verdict, results: Results) -> str:
    """Return one sentence that names the mechanism that suffices and its numbers."""
    if verdict.outcome == UNLEARNED:
        return _sentence_unlearned(verdict)
    if verdict.outcome == TOO_EASY:
        return _sentence_too_easy(verdict, results)
    if verdict.winner is None:
        return _sentence_baseline(verdict)
    name = label(verdict.winner.mechanism, verdict.winner.num_heads)
    evidence = _evidence(verdict, verdict.winner)
    needs = f"; it needs {_needs(results, verdict.winner)}" if results.external is None else ""
    if verdict.outcome == "undecided":
        return f"undecided: {name} may suffice: {evidence}; {_missing(verdict.winner)}{needs}."
    if verdict.winner.of_rows_alone:
        return f"{name} suffices: {evidence}; {ONE_SEED}{needs}."
    failed, seeds = len(verdict.winner.failed), verdict.winner.quality.n
    rate = f"a failure rate of up to {verdict.winner.failure_rate:.0%} cannot be ruled out"
    failures = f"{failed or 'none'} of its {seeds} seeds failed ({rate})"
    return f"{name} suffices: {evidence}; {failures}{needs}."


ONE_SEED = "with one seed each, nothing can be said about other trainings"


def notes(verdict: Verdict, results: Results) -> list[str]:
    """List what else the comparison did and did not establish, what matters most first."""
    sentences = [] if results.scale == SCALES[0] else [f"{SMALL.capitalize()}."]
    if verdict.outcome == UNLEARNED:
        sentences += [f"Change: {change}." for change in remedies(results)]
    sentences += _note_failures(verdict)
    sentences += _note_margin(verdict, results)
    if results.dropped:
        sentences.append(
            f"Trained before and not compared any more: {several(results.dropped)}. No correction "
            "counts what is left out, so choosing after results are seen proves less."
        )
    if results.most_seeds is None:  # else mechanisms have the seeds that they needed
        sentences += [_note_left_out(verdict, c) for c in verdict.comparisons if c.pairing.left_out]
    if results.external is not None:
        sentences += results.external.notes
    sentences += _note_undecided(verdict)
    sentences += _note_improving(verdict, results)
    sentences += _note_log_loss(verdict, results)
    if not verdict.metric.rising:
        sentences.append(
            f"Lower {verdict.metric.title} is better; a difference above zero is an improvement."
        )
    sentences += _note_interval(verdict, results)
    if verdict.winner is not None:
        sentences += [_note_claim(verdict, results), *_note_other_heads(verdict)]
    sentences += _note_scope(results)
    sentences += _note_choice(verdict, results)
    sentences += _note_rates(verdict)
    sentences += _note_folds(verdict, results)
    sentences += _note_floors(verdict, results)
    sentences += _note_answers(verdict, results)
    sentences += _note_signatures(results)
    return sentences + _note_tuning(results)


def _note_scope(results: Results) -> list[str]:
    if results.external is not None:
        return []
    others = "other hyperparameters" if results.tuned else "hyperparameters"
    return [
        f"The seeds vary weights and data order {_where(results)}; other data, sizes, training "
        f"lengths and {others} were not tried."
    ]


def _where(results: Results) -> str:
    if results.task == OWN_LOOP:
        return f"in {OWN_LOOP}"
    own_files = results.task in ("table", "image_folder")
    return f"on {results.title.partition(',')[0] if own_files else results.task}"


def _note_interval(verdict: Verdict, results: Results) -> list[str]:
    judged = [c for c in verdict.comparisons if c.difference and c.difference.low is not None]
    if not judged:
        return []
    rows = sorted({c.rows for c in judged if c.rows is not None})
    if any(c.of_rows_alone for c in judged):
        sentences = [
            f"The intervals cover other rows like these {rows[0]:,}; {ONE_SEED}: a rerun may "
            "differ by more."
        ]
    elif rows:
        unit = next(c.estimate.unit for c in judged if c.rows is not None)
        one = verdict.metric.kind == "share" and verdict.metric.name == "accuracy"
        one &= unit == "test rows"
        point = f"; one percentage point is {rows[0] / 100:.3g} test rows" if one else ""
        sentences = [
            f"The intervals cover other seeds and other {unit} like these {rows[0]:,}{point}."
        ]
    elif any(c.estimate is not None and c.estimate.least_variance for c in judged):
        sentences = [
            "The answers to single test rows were not kept: the intervals are of seeds, and no "
            f"narrower than {results.data.rows['test']:,} test rows allow."
        ]
    else:
        sentences = [
            "Intervals cover seed variance only, on this test split: answers to single test rows "
            "were not kept, nor their number."
        ]
    return sentences


def _note_choice(verdict: Verdict, results: Results) -> list[str]:
    """Write how intervals allow for several candidates, and for several looks."""
    judged = [c for c in verdict.comparisons if c.difference and c.difference.low is not None]
    sentences: list[str] = []
    cheaper = [
        c for c in judged if c.cheaper and (len(c.pairing.seeds) >= MIN_SEEDS or c.of_rows_alone)
    ]
    if results.external is not None:
        return _note_looks(results, len(cheaper)) if judged else []
    if len(cheaper) > 1:
        sentences.append(
            f"The cheapest is chosen among {len(cheaper)}: the chance that any of them is falsely "
            f"said to suffice is at most {(1 - LEVEL) / 2:.1%} (Holm); the intervals allow for it."
        )
    if (most := most_seeds(results)) is not None:
        sentences.append(
            f"Seeds are added where a mechanism is undecided, up to {most}; each is compared on "
            f"those it shares with {results.baseline}, and the intervals hold however often one "
            "looked."
        )
    return sentences


def _note_looks(results: Results, candidates: int) -> list[str]:
    sentences = []
    if candidates > 1:
        sentences.append(
            f"The first that suffices is chosen among {candidates}: the chance that any of them is "
            f"falsely said to suffice is at most {(1 - LEVEL) / 2:.1%} (Holm)."
        )
    if looks := looks_of(results):
        sentences.append(
            f"Looks were declared at {', '.join(map(str, looks))} seeds; the intervals hold at all "
            "of them together."
        )
    return sentences


def _note_floors(verdict: Verdict, results: Results) -> list[str]:
    sentences = []
    unknown = [count_heads(heads) for heads in verdict.qualities if heads not in verdict.floors]
    if unknown and results.external is not None:
        share = verdict.metric.kind == "share"
        sentences += ["What a guess scores is not known; --chance tests against it."] * share
    elif unknown:
        sentences.append(
            f"Whether anything was learned with {', '.join(unknown)} is not known: what a model "
            f"that learned nothing scores in {verdict.metric.title} is not in these results."
        )
    for heads, floor in verdict.floors.items():
        text = f"{floor.name} has {verdict.metric.title} {verdict.metric.write(floor.value)}"
        name = label(verdict.baseline, heads)
        if floor.learned is False and verdict.outcome != UNLEARNED:
            text += f"; {name} is not shown to be above it, so {count_heads(heads)} give no verdict"
        elif floor.learned is None:
            text += f"; whether {name} is above it was not tested"
        if (shown := floor.shown_by) is not None:
            other = metric_of(shown.metric)
            text += (
                f"; {name} is shown to have learned by its {other.title}: difference to "
                f"{shown.name} ({other.write(shown.value)}) "
                f"{interval(shown.above, shown.confidence, other)}"
            )
        sentences.append(f"{text[0].upper()}{text[1:]}.")
    return list(dict.fromkeys(sentences))


def remedies(results: Results) -> list[str]:
    """List what to change where a baseline is not shown to have learned, most likely help first."""
    cells = [cell for cell in results.cells if cell.mechanism == results.baseline and cell.epochs]
    if results.external is not None:
        return ["compare with a baseline that does better than that"]
    changes = []
    if results.metric == "accuracy" and results.majority is not None:
        changes.append("judge by --metric log-loss, which shows more on few rows and rare classes")
    if 2 * sum(cell.best_epoch >= len(cell.epochs) - 1 for cell in cells) >= max(1, len(cells)):
        changes.append(f"train longer ({longer(results, 3)}): the last epochs are the best")
    changes.append("add seeds or rows: an interval that holds 0 shows nothing either way")
    if results.data is not None and results.data.cut is not None and results.data.cut > CUT:
        changes.append(
            f"try --set length={2 * (results.data.read or 1)} by itself, as {results.data.cut:.0%} "
            "of the texts are longer than what is read"
        )
    return changes


CUT = 0.2  # share of texts longer than what is read from which on that is worth a word


def _note_signatures(results: Results) -> list[str]:
    named: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        for item in cell.signatures.items():
            named.setdefault(item, []).append(cell.mechanism)
    return [
        f"FLOPs of {', '.join(dict.fromkeys(mechanisms))}: {text}; others follow from their specs."
        if name == "flops"
        else f"Signature of {name}: {text}"
        for (name, text), mechanisms in named.items()
    ]


def _note_tuning(results: Results) -> list[str]:
    if not results.tuned:
        return []
    first = results.tuned[0]
    rates = [f"{label(t.mechanism, t.num_heads)} {t.rate:g}" for t in results.tuned]
    trainings = sum(tuned.trainings for tuned in results.tuned)
    minutes = sum(tuned.seconds for tuned in results.tuned) / 60
    sentences = [
        f"Learning rates were chosen among {len(first.rates)} from {first.rates[0]:g} to "
        f"{first.rates[-1]:g}, the same for all, by validation loss on {len(first.losses[0])} "
        f"seeds that are not compared: {', '.join(rates)}.",
        f"The choice took {trainings} trainings and {minutes:.1f} minutes, besides the "
        f"{len(results.cells)} trainings that are compared.",
    ]
    for rate, end in ((first.rates[0], "smallest"), (first.rates[-1], "largest")):
        names = [label(t.mechanism, t.num_heads) for t in results.tuned if t.rate == rate]
        if names:
            sentences.append(
                f"The learning rate {rate:g} of {', '.join(names)} is the {end} that was tried, so "
                f"a better one may lie beyond; tune around it with --set learning_rate={rate:g}."
            )
    return sentences


UNITS = {"share": "fraction", "value": "own"}  # of a metric's values by kind; else nats


def verdict_record(verdict: Verdict, results: Results) -> dict[str, Any]:
    """Return the verdict as plain values for JSON, see `docs/verdict.md`."""
    compared = tuple(replace(c, estimate=None) for c in verdict.comparisons)
    plain = replace(verdict, metric=verdict.metric.name, winner=None, comparisons=compared)
    record, external, winner = encode(dataclasses.asdict(plain)), results.external, verdict.winner
    mechanisms = record.pop("comparisons")
    for place, comparison in zip(mechanisms, verdict.comparisons, strict=True):
        place |= {"rows": comparison.rows, **_words(comparison)}
        del place["estimate"], place["sufficiency"]
    return {
        "task": results.task,
        "sources": {} if external is None else external.sources,
        "pairing": None if external is None else external.pairing,
        "sentence": sentence(verdict, results),
        "notes": notes(verdict, results),
        **record,
        **_words(verdict),
        "winner": winner and {"mechanism": winner.mechanism, "num_heads": winner.num_heads},
        "unit": UNITS.get(verdict.metric.kind, "nats"),
        "mechanisms": mechanisms,
        "costs": [] if external else [_costs(results, *pair) for pair in results.pairs()],
        "effort": effort_record(results),
    }


def _words(judged: Comparison | Verdict) -> dict[str, str | None]:
    return {"outcome": outcome_of(judged), "reason": reason_of(judged) or None}


def _costs(results: Results, mechanism: str, num_heads: int) -> dict[str, Any]:
    cell, speed = results.select(mechanism, num_heads)[0], results.speed(mechanism, num_heads)
    return {
        "mechanism": mechanism,
        "num_heads": num_heads,
        "parameters": cell.parameters_model,
        "flops": cell.flops,
        "state_bytes": cell.state_bytes,
        "latency_seconds": None if speed is None else median(speed.latency),
    }


def _missing_of_failures(comparison: Comparison) -> str | None:
    if comparison.sound_seeds is not None:
        return (
            f"a failure rate of up to {comparison.failure_rate:.0%} cannot be ruled out; "
            f"{comparison.sound_seeds} more seeds without one would bound it at the rate asked for"
        )
    if comparison.fails_more_often and len(comparison.pairing.seeds) >= MIN_SEEDS:
        ours = f"{len(comparison.failed)} of {comparison.quality.n} seeds"
        theirs = "{} of {}".format(*comparison.failed_of_baseline)
        return (
            f"it failed in {ours} and the baseline in {theirs}, which does not show a higher rate "
            f"(p = {comparison.failure_p:.2g})"
        )
    return None


def _missing(comparison: Comparison) -> str:
    n = len(comparison.pairing.seeds)
    if comparison.tail:
        return "a few rows hold most of what it loses, and other rows may hold far more"
    if (failures := _missing_of_failures(comparison)) is not None:
        return failures
    if comparison.of_rows_alone:
        if comparison.more_rows is None:
            return f"more rows will hardly decide it at this margin; {ONE_SEED}"
        return f"about {comparison.more_rows:,} more rows would decide it; {ONE_SEED}"
    if n == 0:
        return "the baseline has no seed in common with it at this number of heads"
    if n < MIN_SEEDS:
        return f"{n} seed{'s' * (n > 1)} cannot give a verdict, 5 can"
    if comparison.rows_short:
        rows = "" if comparison.rows is None else f"{comparison.rows:,} "  # not kept
        unit = comparison.estimate.unit
        return f"more seeds will not decide it at this margin: the {rows}{unit} are too few"
    if comparison.more_seeds is None:
        rounded = comparison.estimate is not None and comparison.estimate.resolution > 0.0
        hint = "; use scores with more digits, or of each row" if rounded else ""
        return f"more seeds will hardly decide it at this margin{hint}"
    several = "s" * (comparison.more_seeds != 1)
    return f"about {comparison.more_seeds} more seed{several} would decide it"


def _evidence(verdict: Verdict, comparison: Comparison) -> str:
    metric = verdict.metric
    ours = f"{metric.title} {_quality(metric, comparison.quality)}"
    baseline = verdict.qualities.get(comparison.num_heads)
    margin = f"margin {metric.margin(verdict.margin)}{_smallest_margin(verdict, comparison)}"
    if baseline is None or comparison.difference is None:
        return f"{ours}, {margin}"
    return (
        f"{ours} against {verdict.baseline}'s {_quality(metric, baseline)}, difference "
        f"{interval(comparison.difference, comparison.confidence, metric)}, {margin}"
    )


def _smallest_margin(verdict: Verdict, comparison: Comparison) -> str:
    difference, metric = comparison.difference, verdict.metric
    if comparison.sufficiency not in (UNDECIDED, FAILS) or not difference or difference.low is None:
        return ""
    loss = max(-difference.low, 1e-9)
    digits = 3 if metric.scale > 1 else 2 - math.floor(math.log10(loss))  # of what is written
    smallest = (math.floor(loss * 10**digits) + 1) / 10**digits  # the end is not within the margin
    # from there on nothing would be learned, or the task be too easy
    floor, baseline = (of.get(comparison.num_heads) for of in (verdict.floors, verdict.qualities))
    ceiling = CEILINGS.get(metric.kind, math.inf)
    if comparison.failed or comparison.tail or comparison.sound_seeds:
        return ""
    if floor is not None and floor.above.mean <= smallest:
        return ""
    if baseline is None or baseline.mean + smallest >= ceiling:
        return ""
    return f" (it would suffice at a margin of {metric.margin(smallest)})"


def _note_margin(verdict: Verdict, results: Results) -> list[str]:
    first_command = results.command.partition("\n")[0]
    if not first_command.startswith("suffice compare"):
        return []
    option = re.search(r"--margin[ =]([\d.]+)", first_command)
    first = float(option[1]) / 100.0 if option else MARGIN
    if math.isclose(first, results.margin):
        return []
    write, now = verdict.metric.margin, verdict.metric.margin(results.margin)
    return [
        f"The margin was {verdict.metric.in_unit(write(first))} in the first command and is {now} "
        "now; one that is chosen after results are seen proves less."
    ]


def _note_folds(verdict: Verdict, results: Results) -> list[str]:
    if results.folds is None:
        return []
    covered = ", so the intervals cover other training rows of this table, too"
    return [
        f"Each seed is tested on one of {results.folds} folds of the rows and trained on the "
        f"others{covered if verdict.has_intervals else ''}."
    ]


def _note_log_loss(verdict: Verdict, results: Results) -> list[str]:
    """State what the loss of each row shows of a mechanism that accuracy cannot decide.

    It is another claim, an interval at the confidence of the verdict's own. It decides nothing
    about accuracy and has no margin, so it is not a second chance to be called sufficient.
    """
    winner = verdict.winner
    if winner is None or winner.sufficiency != UNDECIDED or verdict.metric.name != "accuracy":
        return []
    names, metric = (winner.mechanism, verdict.baseline), METRICS["log-loss"]
    cells = [cell for name in names for cell in results.select(name, winner.num_heads)]
    if not all(cell.key in results.rows and results.rows[cell.key].by_row for cell in cells):
        return []
    scores = Scores(results, metric)
    _, table = difference_table(scores, winner.mechanism, winner.num_heads)
    found = scores.estimate(table)
    if found is None or found.seeds < MIN_SEEDS:
        return []
    mean, half = float(found.mean), float(found.half_width(1.0 - winner.confidence))
    difference = Summary(n=found.seeds, mean=mean, sd=None, low=mean - half, high=mean + half)
    return [
        f"Accuracy does not decide about {label(winner.mechanism, winner.num_heads)} at this "
        f"margin. Its {metric.title} grades every answer and is a separate claim: difference to "
        f"{verdict.baseline} {interval(difference, winner.confidence, metric)}, so it loses at "
        f"most {max(0.0, 100 * (half - mean)):.1f}."
    ]


def _quality(metric: Metric, summary: Summary) -> str:
    seeds = f"{summary.n} seed{'s' * (summary.n != 1)}"
    if summary.sd is None or metric.kind in LOGARITHMS:
        return f"{metric.write(summary.mean)} ({seeds})"
    sd = f"{100 * summary.sd:.1f}" if metric.kind == "share" else f"{summary.sd:.2g}"
    return f"{metric.write(summary.mean)} (sd {sd}, {seeds})"


def interval(
    difference: Summary, confidence: float = LEVEL, metric: Metric = METRICS["accuracy"]
) -> str:
    """Write a mean difference with its interval.

    Example:
        >>> interval(Summary(n=5, mean=-0.002, sd=0.004, low=-0.007, high=0.003))
        '-0.20 points, 95% CI [-0.70, +0.30]'
        >>> interval(Summary(n=2, mean=-0.002, sd=0.1, low=None, high=None))
        '-0.20 points, no interval from 2 seeds'
    """
    text = metric.in_unit(metric.difference(difference.mean))
    if not metric.rising:
        text += " (plus is better)"
    if difference.low is None:
        return f"{text}, no interval from {difference.n} seed{'s' * (difference.n != 1)}"
    ends = f"[{metric.difference(difference.low)}, {metric.difference(difference.high)}]"
    return f"{text}, {percentage(confidence)} CI {ends}"


def percentage(confidence: float) -> str:
    """Write a confidence.

    Example:
        >>> percentage(0.95), percentage(0.98333), percentage(0.999874)
        ('95%', '98.3%', '99.987%')
    """
    digits = 3 if round(confidence, 3) < 1.0 else 5
    return f"{100 * confidence:.{digits}g}%"


def _needs(results: Results, comparison: Comparison) -> str:
    key = (comparison.mechanism, comparison.num_heads)
    cell, base = results.select(*key)[0], results.select(results.baseline, key[1])[0]
    parts = []
    if base.flops:
        parts.append(f"{cell.flops / base.flops:.2f}x the FLOPs")
    if (times := results.latency_ratios(*key)) is not None:
        parts.append(f"{median(times):.2f}x the time")
    if comparison.cost.by == "parameters" or not parts:
        share = cell.parameters_model / max(1, base.parameters_model)
        parts.append(f"{share:.2f}x the parameters")
    return " and ".join(parts)


def _sentence_unlearned(verdict: Verdict) -> str:
    heads, floor = max(verdict.floors.items(), key=lambda item: item[1].above.mean)
    metric = verdict.metric
    better = [label(c.mechanism, c.num_heads) for c in verdict.comparisons if c.claim == "better"]
    rest = "no verdict can be given against it"
    if better:
        rest = f"{verdict.baseline} is not a baseline here; {', '.join(better)} did better"
    elif floor.shown_by is not None or (floor.above.low or 0.0) > 0.0:
        rest = "it learned, but so little that a model that reads nothing would suffice"
    return (
        f"{UNLEARNED}: {label(verdict.baseline, heads)} has {metric.title} "
        f"{_quality(metric, verdict.qualities[heads])}, {floor.name} has "
        f"{metric.write(floor.value)}, difference "
        f"{interval(floor.above, floor.confidence, metric)}, margin "
        f"{metric.margin(verdict.margin)}; {rest}."
    )


def _sentence_too_easy(verdict: Verdict, results: Results) -> str:
    metric = verdict.metric
    easy = [c for c in verdict.comparisons if c.sufficiency == TOO_EASY and c.cheaper]

    def needs(comparison: Comparison) -> str:
        if results.external is not None:
            return ""
        return f" and needs {_needs(results, comparison)}"

    each = "; ".join(
        f"{label(c.mechanism, c.num_heads)} has {metric.write(c.quality.mean)}{needs(c)}"
        for c in sorted(easy, key=lambda c: c.cost.order)
    )
    heads = easy[0].num_heads
    return (
        f"{TOO_EASY}: {label(verdict.baseline, heads)} has {metric.title} "
        f"{_quality(metric, verdict.qualities[heads])}, and misses no more than the margin of "
        f"{metric.in_unit(metric.margin(verdict.margin))}; {each}; use a smaller margin or a "
        "harder task."
    )


def _sentence_baseline(verdict: Verdict) -> str:
    best = max(verdict.qualities.items(), key=lambda item: item[1].mean)
    metric = verdict.metric
    quality = f"{label(verdict.baseline, best[0])} has {metric.title} {_quality(metric, best[1])}"
    cheaper = [c for c in verdict.comparisons if c.cheaper and c.sufficiency == FAILS]
    if not cheaper:
        others = "".join(
            f" {label(c.mechanism, c.num_heads)} is not cheaper: {decision(c)}."
            for c in verdict.comparisons
        )
        return (
            f"{verdict.baseline} stays: nothing cheaper by {verdict.by} was compared; "
            f"{quality}.{others}"
        )
    finite = [c for c in cheaper if c.difference and math.isfinite(c.difference.mean)]
    nearest = max(finite, key=lambda c: c.difference.mean) if finite else cheaper[0]
    but = f"; it {learned(nearest.quality.n, nearest.failed)}" if nearest.failed else ""
    if verdict.by == ORDER and len(cheaper) == 1:
        which = f"{nearest.mechanism} does not suffice: it"
    elif verdict.by == ORDER:
        which = f"none of the others suffices; the nearest, {nearest.mechanism},"
    else:
        name = label(nearest.mechanism, nearest.num_heads)
        which = f"no cheaper mechanism suffices; the nearest, {name},"
    return f"{verdict.baseline} stays: {which} has {_evidence(verdict, nearest)}{but}."


def _open_cheaper(verdict: Verdict) -> list[Comparison]:
    return [
        c
        for c in verdict.comparisons
        if c.cheaper
        and c.sufficiency == UNDECIDED
        and c is not verdict.winner
        and (verdict.outcome != "suffices" or c.cost.order < verdict.winner.cost.order)
    ]


def _note_failures(verdict: Verdict) -> list[str]:
    seeds = [(verdict.baseline, h, verdict.qualities[h].n, f) for h, f in verdict.failed.items()]
    seeds += [(c.mechanism, c.num_heads, c.quality.n, c.failed) for c in verdict.comparisons]
    sentences = [
        f"{label(name, h)} {learned(n, failed)}." for name, h, n, failed in seeds if failed
    ]
    if sentences:
        sentences.append(
            "A seed has not learned if it is far below the mechanism's other seeds and the "
            "baseline's, or not clearly above a model that learned nothing."
        )
    return sentences


def _note_rates(verdict: Verdict) -> list[str]:
    """Write which rates of failure are open, but for the one that the sentence says."""
    rates = {
        c.quality.n: c.failure_rate
        for c in verdict.comparisons
        if not c.failed and not c.of_rows_alone
    }
    if verdict.outcome == SUFFICES and not verdict.winner.failed:
        rates.pop(verdict.winner.quality.n, None)
    each = ", ".join(
        f"{rate:.0%} after {n} seed{'s' * (n > 1)}" for n, rate in sorted(rates.items())
    )
    if not each or verdict.outcome == UNLEARNED:
        return []
    return [f"Where all seeds trained, a failure rate of up to {each} cannot be ruled out."]


def _note_improving(verdict: Verdict, results: Results) -> list[str]:
    if not verdict.improving or verdict.outcome == UNLEARNED:  # `remedies` say what to do
        return []
    whole = len(verdict.improving) == len(results.pairs())
    who = "All" if whole else ", ".join(label(*key) for key in verdict.improving)
    return [
        f"Still improving when training ended (the last epoch is the best in most seeds): {who}. "
        f"To train longer: {longer(results, 2)}"
    ]


def longer(results: Results, times: int) -> str:
    """Return what trains `times` times the epochs, in a separate folder."""
    command, _, resumed = results.command.partition("\n")
    epochs = max(len(c.epochs) for c in results.cells)
    names = shlex.quote(",".join(dict.fromkeys(name for name, _ in results.pairs())))
    if command.startswith("suffice.compare_data"):
        return f'settings={{"epochs": {times * epochs}}}, and another folder with out='
    if not command.startswith("suffice compare"):
        scale = "" if results.scale == SCALES[0] else f" --scale {results.scale}"
        command = f"suffice compare --recipe {results.recipe}{scale} --mechanisms {names}"
    elif resumed:  # with other cells, perhaps
        heads = ",".join(map(str, sorted({cell.num_heads for cell in results.cells})))
        command = f"{OF_CELLS.sub('', command)} --mechanisms {names} --heads {heads}"
        if results.most_seeds is None:
            seeds = len({cell.seed for cell in results.cells})
            command = f"{OF_SEEDS.sub('', command)} --seeds {seeds}"
    return f"{OF_THIS_RUN.sub('', command)} --epochs {times * epochs}"


OF_THIS_RUN = re.compile(r" --(?:(?:epochs|out|cells)[ =](?:'[^']*'|\S+)|resume|open)(?!\S)")
OF_CELLS = re.compile(r" --(?:mechanisms|heads)[ =](?:'[^']*'|\S+)(?!\S)")
OF_SEEDS = re.compile(r" --seeds[ =](?:'[^']*'|\S+)(?!\S)")


def _note_answers(verdict: Verdict, results: Results) -> list[str]:
    sentences = []
    if results.answers != 1.0:
        sentences.append(
            f"A row asks for {results.answers:.3g} answers; accuracies and losses are over answers."
        )
    guess = {floor.name for floor in verdict.floors.values()} & {GUESS, NO_READER}
    if results.chance is not None and not guess:
        sentences.append(f"A blind guess has an accuracy of {results.chance:.1%}.")
    return sentences


def _note_claim(verdict: Verdict, results: Results) -> str:
    winner = verdict.winner
    name = label(winner.mechanism, winner.num_heads)
    if winner.p_value is None:
        return f"Whether {name} differs from {verdict.baseline} was not tested; it takes 3 seeds."
    paired = results.external is None or results.external.pairs_seeds or winner.of_rows_alone
    test = "paired t test" if paired else "Welch's t test"
    if winner.rows is not None and not winner.of_rows_alone:
        test = "test over seeds and rows"
    p_value = f"{test}, Holm-corrected p = {winner.p_value:.2g}"
    if winner.claim == "not shown":
        return (
            f"No significant difference between {name} and {verdict.baseline} ({p_value}, "
            f"threshold {ALPHA}), which does not mean that they are equal."
        )
    return f"{name} is {winner.claim} than {verdict.baseline} ({p_value}), whatever the margin."


def _note_other_heads(verdict: Verdict) -> list[str]:
    heads = verdict.winner.num_heads
    best = max(verdict.qualities, key=lambda h: verdict.qualities[h].mean)
    if best == heads or heads not in verdict.qualities:
        return []
    return [
        f"Mechanisms are compared at equal heads: {label(verdict.baseline, best)} has "
        f"{_quality(verdict.metric, verdict.qualities[best])}, which was not held against "
        f"{label(verdict.winner.mechanism, heads)}."
    ]


def _note_undecided(verdict: Verdict) -> list[str]:
    others = {label(c.mechanism, c.num_heads): decision(c) for c in _open_cheaper(verdict)}
    if len(others) > MOST_NAMES:
        return [f"{several(list(others))} are undecided; the table says what would decide each."]
    return [f"{name} is {text}." for name, text in others.items()]


def _note_left_out(verdict: Verdict, comparison: Comparison) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.pairing.left_out)
    return (
        f"{label(comparison.mechanism, comparison.num_heads)} and {verdict.baseline} share "
        f"{len(comparison.pairing.seeds)} seeds; not in both, so not paired: {seeds}."
    )
