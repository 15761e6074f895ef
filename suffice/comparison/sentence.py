"""The verdict in plain English, with its limitations."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterator, Sequence
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
    cost_of,
)
from suffice.train.recipes import SCALES, SMALL
from suffice.utils.records import encode
from suffice.utils.statistics import Summary

MOST_NAMES = 5  # that a sentence lists
ONE_SEED = "with one seed each, nothing can be said about other trainings"


def count_heads(num_heads: int) -> str:
    """Write a number of heads, such as "1 head"."""
    return f"{num_heads} head{'s' if num_heads != 1 else ''}"


def label(mechanism: str, num_heads: int) -> str:
    """Name one (mechanism, heads); results of another program have no heads."""
    return f"{mechanism} ({count_heads(num_heads)})" if num_heads else mechanism


def _name(comparison: Comparison) -> str:
    return label(comparison.mechanism, comparison.num_heads)


def several(names: Sequence[str]) -> str:
    """Write names; of many the first, and the number of the others: "a, b, c and 4 more"."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def _seeds(number: int) -> str:
    return f"{number} seed{'s' * (number != 1)}"


def percentage(confidence: float) -> str:
    """Write a confidence.

    Example:
        >>> percentage(0.95), percentage(0.98333), percentage(0.999874)
        ('95%', '98.3%', '99.987%')
    """
    digits = 3 if round(confidence, 3) < 1.0 else 5
    return f"{100 * confidence:.{digits}g}%"


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
        return f"{text}, no interval from {_seeds(difference.n)}"
    low, high = metric.difference(difference.low), metric.difference(difference.high)
    return f"{text}, {percentage(confidence)} CI [{low}, {high}]"


# Of one mechanism.


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
    """Write whether one mechanism suffices, and after a colon the reason, if any."""
    return ": ".join(filter(None, (outcome_of(comparison), reason_of(comparison))))


def learned(seeds: int, failed: tuple[int, ...]) -> str:
    """Write in how many seeds a mechanism learned: "learned in 4 of 5 seeds (not in 2)"."""
    but = f" (not in {', '.join(map(str, failed))})" if failed else ""
    return f"learned in {seeds - len(failed)} of {_seeds(seeds)}{but}"


def _missing(comparison: Comparison) -> str:
    """Write what would decide a comparison."""
    n, short = len(comparison.pairing.seeds), "at this margin"
    if comparison.tail:
        return "a few rows hold most of its loss, and other rows may hold far more"
    if comparison.sound_seeds is not None:
        return (
            f"its failure rate may be up to {comparison.failure_rate:.0%}; "
            f"{comparison.sound_seeds} more seeds without a failure would bound it as asked"
        )
    if comparison.fails_more_often and n >= MIN_SEEDS:
        failed, seeds = comparison.failed_of_baseline
        return (
            f"it failed in {len(comparison.failed)} of {comparison.quality.n} seeds and the "
            f"baseline in {failed} of {seeds}, which does not show a higher rate "
            f"(p = {comparison.failure_p:.2g})"
        )
    if comparison.of_rows_alone:
        if comparison.more_rows is None:
            return f"more rows will hardly decide it {short}; {ONE_SEED}"
        return f"about {comparison.more_rows:,} more rows would decide it; {ONE_SEED}"
    if n < MIN_SEEDS:
        few = f"{_seeds(n)} cannot give a verdict, 5 can"
        return few if n else "the baseline shares no seed with it at this number of heads"
    if comparison.rows_short:
        rows = "" if comparison.rows is None else f"{comparison.rows:,} "  # not kept
        unit = comparison.estimate.unit
        return f"more seeds will not decide it {short}: the {rows}{unit} are too few"
    if comparison.more_seeds is None:
        rounded = comparison.estimate is not None and comparison.estimate.resolution > 0.0
        hint = "; use scores with more digits, or of each row" if rounded else ""
        return f"more seeds will hardly decide it {short}{hint}"
    return f"about {_seeds(comparison.more_seeds).replace(' ', ' more ')} would decide it"


def _quality(metric: Metric, summary: Summary) -> str:
    seeds = _seeds(summary.n)
    if summary.sd is None or metric.kind in LOGARITHMS:
        return f"{metric.write(summary.mean)} ({seeds})"
    sd = f"{100 * summary.sd:.1f}" if metric.kind == "share" else f"{summary.sd:.2g}"
    return f"{metric.write(summary.mean)} (sd {sd}, {seeds})"


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


def _needs(results: Results, comparison: Comparison) -> str:
    """Write what a mechanism costs as a share of the baseline; nothing of external results."""
    if results.external is not None:
        return ""
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
    return f"needs {' and '.join(parts)}"


# Of the whole comparison.


def sentence(verdict: Verdict, results: Results) -> str:
    """Return one sentence that names the mechanism that suffices and its numbers."""
    if verdict.outcome == UNLEARNED:
        return _sentence_unlearned(verdict)
    if verdict.outcome == TOO_EASY:
        return _sentence_too_easy(verdict, results)
    winner = verdict.winner
    if winner is None:
        return _sentence_baseline(verdict, results)
    begin, end = f"{_name(winner)} suffices", ONE_SEED
    if verdict.outcome == UNDECIDED:
        begin, end = f"undecided: {_name(winner)} may suffice", _missing(winner)
    elif not winner.of_rows_alone:
        failed, seeds = len(winner.failed), winner.quality.n
        end = f"{failed or 'none'} of its {seeds} seeds failed"
        end += f" (its failure rate may be up to {winner.failure_rate:.0%})"
    needs = _needs(results, winner)
    return f"{begin}: {_evidence(verdict, winner)}; {end}{'; it ' * bool(needs)}{needs}."


def _sentence_unlearned(verdict: Verdict) -> str:
    heads, floor = max(verdict.floors.items(), key=lambda item: item[1].above.mean)
    metric = verdict.metric
    better = [
        _name(comparison) for comparison in verdict.comparisons if comparison.claim == "better"
    ]
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
    each = "; ".join(
        " and ".join(
            filter(None, (f"{_name(c)} has {metric.write(c.quality.mean)}", _needs(results, c)))
        )
        for c in sorted(easy, key=lambda c: c.cost.order)
    )
    heads = easy[0].num_heads
    return (
        f"{TOO_EASY}: {label(verdict.baseline, heads)} has {metric.title} "
        f"{_quality(metric, verdict.qualities[heads])}, and misses no more than the margin of "
        f"{metric.in_unit(metric.margin(verdict.margin))}; {each}; use a smaller margin or a "
        "harder task."
    )


def _sentence_baseline(verdict: Verdict, results: Results) -> str:
    stays, metric = f"{verdict.baseline} stays", verdict.metric
    failing = [c for c in verdict.comparisons if c.cheaper and c.sufficiency == FAILS]
    if not failing:
        heads, best = max(verdict.qualities.items(), key=lambda item: item[1].mean)
        others = "".join(f" {_name(c)} is not cheaper: {decision(c)}." for c in verdict.comparisons)
        return (
            f"{stays}: nothing cheaper by {verdict.by} was compared; "
            f"{label(verdict.baseline, heads)} has {metric.title} {_quality(metric, best)}.{others}"
        )
    if equal := _undecided_at_equal_cost(verdict, results):
        nearest, names = _nearest(equal), several([_name(c) for c in equal])
        which = (
            f"{names} {'cost' if equal[1:] else 'costs'} as much by {verdict.by} and may suffice"
        )
        subject = _name(nearest) if equal[1:] else "it"
        return (
            f"{stays}: no cheaper mechanism suffices; {which}: {subject} has "
            f"{_evidence(verdict, nearest)}; {_missing(nearest)}."
        )
    nearest = _nearest(failing)
    but = f"; it {learned(nearest.quality.n, nearest.failed)}" if nearest.failed else ""
    if verdict.by != ORDER:
        which = f"no cheaper mechanism suffices; the nearest, {_name(nearest)},"
    elif len(failing) == 1:
        which = f"{nearest.mechanism} does not suffice: it"
    else:
        which = f"none of the others suffices; the nearest, {nearest.mechanism},"
    return f"{stays}: {which} has {_evidence(verdict, nearest)}{but}."


def _undecided_at_equal_cost(verdict: Verdict, results: Results) -> list[Comparison]:
    """List what is not cheaper but costs no more either, as a mask of full attention does."""
    return [
        c
        for c in verdict.comparisons
        if not c.cheaper
        and c.sufficiency == UNDECIDED
        and results.select(verdict.baseline, c.num_heads)
        and c.cost.value == cost_of(results, verdict.baseline, c.num_heads, verdict.by).value
    ]


def _nearest(comparisons: Sequence[Comparison]) -> Comparison:
    finite = [c for c in comparisons if c.difference and math.isfinite(c.difference.mean)]
    return max(finite, key=lambda c: c.difference.mean) if finite else comparisons[0]


def notes(verdict: Verdict, results: Results) -> list[str]:
    """List what else the comparison did and did not establish, what matters most first."""
    return [note for part in NOTES for note in part(verdict, results)]


def _scale_and_remedies(verdict: Verdict, results: Results) -> Iterator[str]:
    if results.scale != SCALES[0]:
        yield f"{SMALL.capitalize()}."
    if verdict.outcome == UNLEARNED:
        yield from (f"Change: {change}." for change in remedies(results))


def remedies(results: Results) -> Iterator[str]:
    """Yield changes where a baseline is not shown to have learned, most likely help first."""
    cells = [cell for cell in results.cells if cell.mechanism == results.baseline and cell.epochs]
    if results.external is not None:
        yield "compare with a baseline that does better than that"
        return
    if results.metric == "accuracy" and results.majority is not None:
        yield "judge by --metric log-loss, which shows more on few rows and rare classes"
    if 2 * sum(cell.best_epoch >= len(cell.epochs) - 1 for cell in cells) >= max(1, len(cells)):
        yield f"train longer ({longer(results, 3)}): the last epochs are the best"
    yield "add seeds or rows: an interval that holds 0 shows nothing either way"
    if results.data is not None and results.data.cut is not None and results.data.cut > CUT:
        yield (
            f"try --set length={2 * (results.data.read or 1)} by itself, as {results.data.cut:.0%} "
            "of the texts are longer than the model reads"
        )


CUT = 0.2  # share of texts longer than the model reads from which on a remedy names it


def _failures(verdict: Verdict, _results: Results) -> Iterator[str]:
    failed = [(verdict.baseline, h, verdict.qualities[h].n, f) for h, f in verdict.failed.items()]
    failed += [(c.mechanism, c.num_heads, c.quality.n, c.failed) for c in verdict.comparisons]
    failed = [of_pair for of_pair in failed if of_pair[-1]]
    yield from (f"{label(name, h)} {learned(n, seeds)}." for name, h, n, seeds in failed)
    if failed:
        yield (
            "A seed has not learned if it is far below the mechanism's other seeds and the "
            "baseline's, or not clearly above a model that learned nothing."
        )


def _history(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield what changed between commands, and what was left out."""
    metric, first_command = verdict.metric, results.command.partition("\n")[0]
    option = re.search(r"--margin[ =]([\d.]+)", first_command)
    first = float(option[1]) / 100.0 if option else MARGIN
    if first_command.startswith("suffice compare") and not math.isclose(first, results.margin):
        yield (
            f"The margin was {metric.in_unit(metric.margin(first))} in the first command and is "
            f"{metric.margin(results.margin)} now; a margin chosen after seeing results proves "
            "less."
        )
    if results.dropped:
        yield (
            f"Trained before but no longer compared: {several(results.dropped)}. No correction "
            "counts them, so a choice made after seeing results proves less."
        )
    for c in verdict.comparisons if results.most_seeds is None else ():  # else some need more
        if c.pairing.left_out:
            yield (
                f"{_name(c)} and {verdict.baseline} share {len(c.pairing.seeds)} seeds; not in "
                f"both, so not paired: {', '.join(map(str, c.pairing.left_out))}."
            )
    if results.external is not None:
        yield from results.external.notes


def _undecided(verdict: Verdict, _results: Results) -> Iterator[str]:
    """Yield what cheaper mechanisms lack that the sentence does not name."""
    others = {
        _name(c): decision(c)
        for c in verdict.comparisons
        if c.cheaper
        and c.sufficiency == UNDECIDED
        and c is not verdict.winner
        and (verdict.outcome != SUFFICES or c.cost.order < verdict.winner.cost.order)
    }
    if len(others) > MOST_NAMES:
        yield f"{several(list(others))} are undecided; the table says what would decide each."
    else:
        yield from (f"{name} is {text}." for name, text in others.items())


def _improving(verdict: Verdict, results: Results) -> Iterator[str]:
    if verdict.improving and verdict.outcome != UNLEARNED:  # else `remedies` name it
        whole = len(verdict.improving) == len(results.pairs())
        who = "all" if whole else ", ".join(label(*key) for key in verdict.improving)
        yield (
            "Still improving when training ended (the last epoch is the best in most seeds): "
            f"{who}. To train longer: {longer(results, 2)}"
        )


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


def _log_loss(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield what the loss of each row shows of a mechanism that accuracy cannot decide.

    It is another claim, an interval at the confidence of the verdict's own. It decides nothing
    about accuracy and has no margin, so it is not a second chance to be called sufficient.
    """
    winner = verdict.winner
    if winner is None or winner.sufficiency != UNDECIDED or verdict.metric.name != "accuracy":
        return
    names, metric = (winner.mechanism, verdict.baseline), METRICS["log-loss"]
    cells = [cell for name in names for cell in results.select(name, winner.num_heads)]
    if not all(cell.key in results.rows and results.rows[cell.key].by_row for cell in cells):
        return
    scores = Scores(results, metric)
    found = scores.estimate(difference_table(scores, winner.mechanism, winner.num_heads)[1])
    if found is None or found.seeds < MIN_SEEDS:
        return
    mean, half = float(found.mean), float(found.half_width(1.0 - winner.confidence))
    difference = Summary(n=found.seeds, mean=mean, sd=None, low=mean - half, high=mean + half)
    yield (
        f"Accuracy does not decide about {_name(winner)} at this margin. Its {metric.title} grades "
        f"every answer and is a separate claim: difference to {verdict.baseline} "
        f"{interval(difference, winner.confidence, metric)}, so it loses at most "
        f"{max(0.0, 100 * (half - mean)):.1f}."
    )


def _intervals(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield what the intervals cover."""
    if not verdict.metric.rising:
        yield f"Lower {verdict.metric.title} is better; a difference above zero is an improvement."
    judged = [c for c in verdict.comparisons if c.difference and c.difference.low is not None]
    of_rows = [c for c in judged if c.rows is not None]
    if any(c.of_rows_alone for c in judged):
        rows = min(c.rows for c in of_rows)
        covered = f"The intervals cover other rows like these {rows:,}"
        yield f"{covered}; {ONE_SEED}: a rerun may differ by more."
    elif of_rows:
        rows, unit = min(c.rows for c in of_rows), of_rows[0].estimate.unit
        share = verdict.metric.kind == "share" and verdict.metric.name == "accuracy"
        point = f"; one percentage point is {rows / 100:.3g} test rows"
        point *= share and unit == "test rows"
        yield f"The intervals cover other seeds and other {unit} like these {rows:,}{point}."
    elif any(c.estimate is not None and c.estimate.least_variance for c in judged):
        yield (
            "The intervals cover other seeds, and cannot be narrower than "
            f"{results.data.rows['test']:,} test rows allow: answers to single rows were not kept."
        )
    elif judged:
        yield (
            "The intervals cover other seeds alone, on this test split: neither answers to single "
            "test rows nor their number were kept."
        )


def _claim(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield whether the mechanism that is named differs from the baseline."""
    winner = verdict.winner
    if winner is None:
        return
    name, heads = _name(winner), winner.num_heads
    paired = results.external is None or results.external.pairs_seeds or winner.of_rows_alone
    test = "paired t test" if paired else "Welch's t test"
    if winner.rows is not None and not winner.of_rows_alone:
        test = "test over seeds and rows"
    if winner.p_value is None:
        yield f"Whether {name} differs from {verdict.baseline} was not tested; it takes 3 seeds."
    elif winner.claim == "not shown":
        yield (
            f"No significant difference between {name} and {verdict.baseline} ({test}, "
            f"Holm-corrected p = {winner.p_value:.2g}, threshold {ALPHA}); that does not mean that "
            "they are equal."
        )
    else:
        p_value = f"{test}, Holm-corrected p = {winner.p_value:.2g}"
        yield f"{name} is {winner.claim} than {verdict.baseline} ({p_value}), whatever the margin."
    best = max(verdict.qualities, key=lambda h: verdict.qualities[h].mean)
    if best != heads and heads in verdict.qualities:
        yield (
            f"Mechanisms are compared at equal heads: {name} was not compared with "
            f"{label(verdict.baseline, best)}, which has "
            f"{_quality(verdict.metric, verdict.qualities[best])}."
        )


def _scope(_verdict: Verdict, results: Results) -> Iterator[str]:
    if results.external is not None:
        return
    where = f"on {results.task}"
    if results.task == OWN_LOOP:
        where = f"in {OWN_LOOP}"
    elif results.task in ("table", "image_folder"):  # whose title begins with the files' name
        where = f"on {results.title.partition(',')[0]}"
    others = "other hyperparameters" if results.tuned else "hyperparameters"
    yield (
        f"The seeds vary weights and data order {where}; other data, sizes, training lengths and "
        f"{others} were not tried."
    )


def _choice(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield how intervals allow for several candidates, and for several looks."""
    judged = [c for c in verdict.comparisons if c.difference and c.difference.low is not None]
    enough = [c for c in judged if len(c.pairing.seeds) >= MIN_SEEDS or c.of_rows_alone]
    if (candidates := sum(c.cheaper for c in enough)) > 1:
        which = "cheapest" if results.external is None else "first that suffices"
        allowed = "; the intervals allow for it" * (results.external is None)
        yield (
            f"The {which} is chosen among {candidates}: the chance of calling any of them "
            f"sufficient by mistake is at most {(1 - LEVEL) / 2:.1%} (Holm){allowed}."
        )
    if results.external is None:
        if (most := most_seeds(results)) is not None:
            yield (
                f"Seeds are added where a mechanism is undecided, up to {most}; each is compared "
                f"on the seeds that it shares with {results.baseline}, and the intervals hold at "
                "every look."
            )
    elif judged and (looks := looks_of(results)):
        yield (
            f"Looks were declared at {', '.join(map(str, looks))} seeds; the intervals hold at all "
            "of them together."
        )


def _rates(verdict: Verdict, _results: Results) -> Iterator[str]:
    """Yield which rates of failure are open, except the rate that the sentence states."""
    rates = {
        c.quality.n: c.failure_rate
        for c in verdict.comparisons
        if not c.failed and not c.of_rows_alone
    }
    if verdict.outcome == SUFFICES and not verdict.winner.failed:
        rates.pop(verdict.winner.quality.n, None)
    if rates and verdict.outcome != UNLEARNED:
        each = ", ".join(f"{rate:.0%} after {_seeds(n)}" for n, rate in sorted(rates.items()))
        yield f"Where no seed failed, the failure rate may be up to {each}."


def _folds(verdict: Verdict, results: Results) -> Iterator[str]:
    if results.folds is not None:
        covered = ", so the intervals cover other training rows of this table, too"
        yield (
            f"Each seed is tested on one of {results.folds} folds of the rows and trained on the "
            f"others{covered if verdict.has_intervals else ''}."
        )


def _floors(verdict: Verdict, results: Results) -> Iterator[str]:
    """Yield what learning nothing scores, each text once."""
    metric, unknown = verdict.metric, [h for h in verdict.qualities if h not in verdict.floors]
    if unknown and results.external is None:
        yield (
            f"Whether anything was learned with {', '.join(map(count_heads, unknown))} is not "
            f"known: the results lack the {metric.title} of a model that learned nothing."
        )
    elif unknown and metric.kind == "share":
        yield "The score of a guess is not known; --chance tests against it."
    sentences = []
    for heads, floor in verdict.floors.items():
        text = f"{floor.name} has {metric.title} {metric.write(floor.value)}"
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
    yield from dict.fromkeys(sentences)
    if results.answers != 1.0:
        asked = f"A row asks for {results.answers:.3g} answers"
        yield f"{asked}; accuracies and losses are over answers."
    guess = {floor.name for floor in verdict.floors.values()} & {GUESS, NO_READER}
    if results.chance is not None and not guess:
        yield f"A blind guess has an accuracy of {results.chance:.1%}."


def _signatures(_verdict: Verdict, results: Results) -> Iterator[str]:
    named: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        for item in cell.signatures.items():
            named.setdefault(item, []).append(cell.mechanism)
    for (name, text), mechanisms in named.items():
        if name == "flops":
            names = ", ".join(dict.fromkeys(mechanisms))
            yield f"FLOPs of {names}: {text}; others follow from their specs."
        else:
            yield f"Signature of {name}: {text}"


def _tuning(_verdict: Verdict, results: Results) -> Iterator[str]:
    if not results.tuned:
        return
    first = results.tuned[0]
    rates = [f"{label(t.mechanism, t.num_heads)} {t.rate:g}" for t in results.tuned]
    yield (
        f"Learning rates were chosen among {len(first.rates)} from {first.rates[0]:g} to "
        f"{first.rates[-1]:g}, the same for all, by validation loss on {len(first.losses[0])} "
        f"seeds that are not compared: {', '.join(rates)}."
    )
    yield (
        f"The choice took {sum(tuned.trainings for tuned in results.tuned)} trainings and "
        f"{sum(tuned.seconds for tuned in results.tuned) / 60:.1f} minutes, besides the "
        f"{len(results.cells)} trainings that are compared."
    )
    for rate, end in ((first.rates[0], "smallest"), (first.rates[-1], "largest")):
        if names := [label(t.mechanism, t.num_heads) for t in results.tuned if t.rate == rate]:
            yield (
                f"The learning rate {rate:g} of {', '.join(names)} is the {end} tried, so a better "
                f"one may lie beyond; tune around it with --set learning_rate={rate:g}."
            )


NOTES = (
    _scale_and_remedies,
    _failures,
    _history,
    _undecided,
    _improving,
    _log_loss,
    _intervals,
    _claim,
    _scope,
    _choice,
    _rates,
    _folds,
    _floors,
    _signatures,
    _tuning,
)  # what matters most first


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
