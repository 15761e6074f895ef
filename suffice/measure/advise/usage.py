"""The advice as text: sentences, and the Python and commands that use the recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from suffice.measure.advise.evidence import deciding
from suffice.measure.advise.request import (
    Base,
    Candidate,
    Request,
    describe_bytes,
    each,
    format_bytes,
    format_seconds,
)
from suffice.measure.advise.study import Study, quartiles
from suffice.measure.advise.timing import MIN_ROUNDS, command
from suffice.measure.edge.shapes import SHAPES
from suffice.measure.sentence import margin_points
from suffice.memory import Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD

MORE_TIME = "give more minutes, or a smaller model or length"


def recommendation(study: Study, winner: str | None) -> str:
    """Return what is known, what is recommended, and what comes nearest if nothing is."""
    if winner is None:
        return _no_winner(study)
    place, ranks = study.place(winner), study.ranks()
    if not study.measured.enough:
        return (
            f"Stay with standard, which needs no evidence: {study.measured.rounds} of {MIN_ROUNDS} "
            f"rounds are too few to tell whether anything is faster; {MORE_TIME}."
        )
    fit = len(study.representatives.keys() - study.oversized.keys())
    count = f"of {len(ranks)} measured" if len(ranks) > 1 else "the only one measured"
    if len(ranks) < fit:
        count += f" ({fit} fit)"
    seconds = f"{format_seconds(place.seconds.median)} {each(study.request.unit)}"
    needs = f"{format_bytes(place.needs.total)} ({describe_bytes(place.needs)})"
    if winner == STANDARD:
        return (
            f"{_standard(study, len(ranks))}: {seconds}, {needs}, {count}.{_beside(study, winner)}"
        )
    ratio = "standard was not measured"
    if place.ratio is not None:
        ratio = f"{place.ratio.median:.2f}x Standard's {quartiles(place.ratio)}"
    rank = "the fastest" if ranks[winner] == 1 else "the fastest that keeps to the limits"
    if not study.suffices(winner):
        rank = f"number {ranks[winner]} by time"
    tied = sum(other == ranks[winner] for other in ranks.values()) - 1
    if tied:
        rank += f", {tied} other{'s tie' if tied > 1 else ' ties'} with it"
    measured = f"{seconds}, {ratio}, {needs}; {rank}, {count}."
    return f"{_known(study, winner)}: {measured}{_beside(study, winner)}"


def _known(study: Study, winner: str) -> str:
    if not study.suffices(winner):
        return (
            f"Nothing is known to suffice near {study.asked} within the limits, and standard is "
            f"too much. Take {winner}, the least changed that fits, untried"
        )
    nearest, *others = deciding(study.evidence[winner])
    whose = "your own" if nearest.own else "the"
    number = f"all {len(others) + 1} comparisons" if others else "comparison"
    first = "the nearest: " if others else ""
    return (
        f"Take {winner}, which suffices at {margin_points(nearest.margin)} points by {whose} "
        f"{number} near {study.asked} ({first}{nearest.title}: {nearest.difference})"
    )


def _standard(study: Study, measured: int) -> str:
    if measured == 1:
        return f"Stay with standard, which needs no evidence, until more is measured; {MORE_TIME}"
    if study.untried() is not None:
        return (
            f"Nothing faster is known to suffice near {study.asked}: stay with standard, the safest"
        )
    lost = any(name in study.losses for name in study.ranks())
    those = "; what is faster is known to lose too much" if lost else ""
    packed = (
        ""
        if study.untried(packed=True) is None
        else " unless a trained model is packed or its cache cut"
    )
    return f"Stay with standard: nothing measured is faster by more than noise{packed}{those}"


def _beside(study: Study, winner: str) -> str:
    """Return the fastest mechanism whose quality is not known, and how to find out."""
    name = study.untried()
    if name is None:
        return ""
    place, words = study.place(name), "A comparison would show whether it is good enough"
    if name != winner:
        words = f"{name} is the fastest whose quality a comparison can show"
        if place.ratio is not None:
            times = f"{place.ratio.median:.2f}x Standard's time {quartiles(place.ratio)}"
            words = f"{name} takes {times}; whether it is good enough is not known"
    return (
        f" {words}; quality: {place.evidence_told}."
        if study.trial is None
        else (f" {words}: run {study.trial.sentence}, then give its folder with --results.")
    )


def _no_winner(study: Study) -> str:
    if len(study.oversized) == len(study.candidates):
        nearest = min(study.needs, key=lambda name: (study.needs[name].total, name))
        needs = study.needs[nearest]
        return (
            f"Nothing fits {format_bytes(study.memory)}: the nearest, {nearest}, needs "
            f"{format_bytes(needs.total)} ({describe_bytes(needs)})."
        )
    names = [name for name in study.ranks() if name not in study.oversized]
    if not names:
        return f"Nothing that fits was measured: {MORE_TIME}."
    race = study.measured
    if not race.enough:
        why = study.oversized.get(STANDARD, "does not keep to the limits as far as it was measured")
        return (
            f"Nothing is recommended: {race.rounds} of {MIN_ROUNDS} rounds, and standard {why}; "
            f"{MORE_TIME}."
        )
    nearest = next((name for name in names if name not in study.losses), None)
    if nearest is None:
        return f"Everything measured loses too much: {names[0]}: {study.losses[names[0]]}."
    excess = study.latency_excess(race.times(nearest))
    if excess is not None:
        return f"Nothing measured is fast enough: the nearest is {nearest}, {excess}."
    return (
        "Nothing that keeps to the limits is as fast as Standard, which does not keep to them: the "
        f"nearest is {nearest}, {study.place(nearest).reason}."
    )


def notes(study: Study, winner: str | None, *, interrupted: bool) -> Iterator[str]:
    """Yield sentences about the recommendation and what was not measured."""
    if interrupted:
        yield "Interrupted: places are of what was measured until then."
    for folder, why in study.library.unheard.items():
        yield f"--results {folder} is not evidence for this request: {why}."
    yield "Weights are random: times are of these sizes on this machine, quality is not measured."
    ranks = study.ranks()
    if winner is not None:
        first = next((name for name in ranks if name not in study.oversized), winner)
        if study.measured.enough and ranks[winner] > ranks[first]:
            yield f"{first} was faster, but is not recommended: {study.place(first).reason}."
        yield from _of_winner(study, winner)
    if STANDARD in study.candidates and STANDARD not in study.race.samples:
        yield "Standard was not measured, so nothing is said of being faster than it."
    unmeasured = sum(place.status == "not measured" for place in study.places())
    if unmeasured:
        yield (
            f"{unmeasured} compositions were not measured: {study.request.minutes:g} minutes were "
            "given to those that promise most by closed form; --minutes or --mechanisms reaches "
            "others."
        )


def _of_winner(study: Study, winner: str) -> Iterator[str]:
    place = study.place(winner)
    if winner != STANDARD:
        yield f"Quality of {winner}: {place.evidence_told}."
    if study.candidates[winner].composition.sinks and study.base.writes:
        yield ("The window and its sinks are of the memory: a model trained without them forgets.")
    if place.crossover is not None and place.crossover.at is not None:
        length = place.crossover.at
        yield f"It is faster than Standard from {length} on, of the lengths measured."
    if (packed := study.untried(packed=True)) is not None:
        place = study.place(packed)
        times = (
            "" if place.ratio is None else f" takes {place.ratio.median:.2f}x Standard's time, and"
        )
        yield (
            f"{packed}{times} changes a trained model, which no comparison decides about: "
            f"{place.evidence_told}."
        )


def python_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return lines of Python that build the recommended model and use it."""
    sizes = {"model": request.model, "checkpoint": request.checkpoint, "length": request.length}
    options = "".join(f", {name}={value!r}" for name, value in sizes.items() if value is not None)
    lines = [
        "from suffice.measure.advise import Composition, Request, base_of",
        f"base = base_of(Request(task={request.task!r}{options}))",
        f"composition = Composition.parse({candidate.name!r})",
        "model = base.build(composition)  # weights are random: train it, or give it trained ones",
    ]
    if candidate.composition.weights is not None:
        lines += [
            "from suffice.quantise import quantise",
            f"report = quantise(model, bits={candidate.composition.weights})  # when it is trained",
        ]
    config = base.config
    if isinstance(config, LMConfig):
        lines += [
            "from suffice.generate import generate",
            "memory = base.memory_for(composition)",
            "written = generate(model, [[1, 2, 3]], max_new_tokens=8, memory=memory)",
        ]
    elif isinstance(config, TranslatorConfig):
        lines += [
            "from suffice.generate.translate import translate",
            "memory = base.memory_for(composition)",
            "translated = translate(model, [[1, 2, 3]], start=1, max_new_tokens=8, memory=memory)",
        ]
    elif isinstance(config, ViTConfig):
        shape = (2, config.channels, config.image_size, config.image_size)
        lines += ["import torch", f"logits = model.eval()(torch.randn{shape})"]
    else:
        ids = f"torch.randint({config.vocabulary_size}, {(2, base.length)})"
        lines += ["import torch", f"logits = model.eval()({ids})"]
    return tuple(lines)


def cli_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return commands that train, convert or compare the recommended model; () if none can."""
    composition = candidate.composition
    if base.task != "lm":
        names = dict.fromkeys((STANDARD, composition.name))
        return () if composition.of_use else (command(base, *names),)
    steps = _convert(candidate, request) if request.checkpoint else _train(candidate, base)
    if steps is None:
        return ()
    folder, lines = steps
    if composition.weights is not None:
        packed = f"{folder}-{composition.weights}bit"
        lines.append(f"suffice quantise {folder} --bits {composition.weights} --out {packed}")
        folder = packed
    return (*lines, f"suffice generate {folder}{_memory_options(candidate)}")


def _train(candidate: Candidate, base: Base) -> tuple[str, list[str]]:
    composition = candidate.composition
    settings = {
        "configuration": SHAPES.get(base.name, base.name),
        "length": base.length,
        "num_kv_heads": composition.kv,
        "softmax_every": composition.softmax,
        "window": None if composition.sinks else composition.window,
        "full_every": composition.full,
    }
    options = " ".join(f"--set {name}={n}" for name, n in settings.items() if n is not None)
    recipe = f"--recipe stdlib_bpe --mechanism {composition.mechanism}"
    return "model", [f"suffice train {recipe} {options} --out model"]


def _convert(candidate: Candidate, request: Request) -> tuple[str, list[str]] | None:
    composition = candidate.composition
    if composition.softmax is not None or composition.full is not None:
        return None
    mechanism, heads = composition.mechanism, composition.kv
    if mechanism in ("gqa", "mqa"):
        heads = heads or (1 if mechanism == "mqa" else candidate.specs[0].kv_heads)
    elif mechanism not in ("standard", "optimised", "efficient"):
        return None
    steps = [] if heads is None else [f"gqa:{heads}"]
    if mechanism in ("optimised", "efficient"):
        steps.append(mechanism)
    if composition.window is not None and not composition.sinks:
        steps.append(f"window:{composition.window}+sinks:0")
    folder = shlex.quote(str(request.checkpoint))
    if not steps:
        return folder, []
    return "converted", [f"suffice convert {folder} --to {','.join(steps)} --out converted"]


def _memory_options(candidate: Candidate) -> str:
    memory, options = candidate.memory, ""
    if isinstance(memory, Quantised):
        values = "" if memory.value_bits is None else f":{memory.value_bits}"
        options = f" --quantise-memory {memory.bits}{values}"
        memory = memory.inner
    if isinstance(memory, Rolling):
        sinks = f":{memory.sinks}" if memory.sinks else ""
        options = f" --memory rolling:{memory.window}{sinks}{options}"
    return options
