"""The recommendation in sentences, and what it does not say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from suffice.advise.candidates import Candidate
from suffice.advise.race import FEWEST
from suffice.advise.ranking import STANDARD, Found, parts, sized, timed
from suffice.advise.request import Base, Request, each
from suffice.measure.edge.shapes import SHAPES
from suffice.memory import Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig

MORE = "give more minutes, or a smaller model or length"
RANDOM = "Weights are random: times are of these sizes on this machine, quality is not measured."


def sentence(found: Found, winner: str | None) -> str:
    """Return what to take, or why nothing is recommended and what comes nearest."""
    if winner is None:
        return _none(found)
    places = {place.name: place for place in found.places()}
    one = places[winner]
    count = sum(place.rank is not None for place in places.values())
    of = f"of {count} measured" if count > 1 else "the only one measured"
    took = f"{timed(one.seconds.median)} {each(found.limits.unit)}"
    needed = f"{sized(one.needs.total)} ({parts(one.needs)})"
    if winner == STANDARD:
        return (
            f"Stay with standard: {took}, {needed}; nothing that keeps to the limits was faster "
            f"beyond noise, {of}."
        )
    beside = "standard was not measured"
    if one.ratio is not None:
        beside = (
            f"{one.ratio.median:.2f}x Standard's (quartiles {one.ratio.low:.2f} to "
            f"{one.ratio.high:.2f})"
        )
    return f"Take {winner}: {took}, {beside}, {needed}; {_rank(found, winner)}, {of}."


def _rank(found: Found, winner: str) -> str:
    """Return how a winner stands to others of its rank."""
    ranks = found.ranks()
    tied = sum(rank == ranks[winner] for rank in ranks.values()) - 1
    first = "the fastest" if ranks[winner] == 1 else "the fastest that keeps to the limits"
    if not tied:
        return first
    return f"{first}, {tied} other{'s tie' if tied > 1 else ' ties'} with it"


def _none(found: Found) -> str:
    """Return why nothing is recommended, and what comes nearest."""
    if len(found.over) == len(found.candidates):
        near = min(found.needs, key=lambda name: (found.needs[name].total, name))
        told = found.needs[near]
        return (
            f"Nothing fits {sized(found.limits.memory)}: the nearest, {near}, needs "
            f"{sized(told.total)} ({parts(told)})."
        )
    ranks = [name for name in found.ranks() if name not in found.over]
    if not ranks:
        return f"Nothing that fits was measured: {MORE}."
    race = found.measured
    if not race.enough:
        return f"Nothing is recommended: {race.rounds} of {FEWEST} rounds; {MORE}."
    quick = [name for name in ranks if name not in found.lost]
    if not quick:
        return f"Everything measured loses too much: {ranks[0]}: {found.lost[ranks[0]]}."
    near = quick[0]
    if (told := found.limits.slow(race.times(near))) is not None:
        return f"Nothing measured is fast enough: the nearest is {near}, {told}."
    place = next(place for place in found.places() if place.name == near)
    return (
        "Nothing that keeps to the limits is as fast as Standard, which does not keep to them: the "
        f"nearest is {near}, {place.reason}."
    )


def notes(
    found: Found, winner: str | None, base: Base, request: Request, *, interrupted: bool
) -> tuple[str, ...]:
    """Return what else is to be known, a sentence each."""
    return tuple(_notes(found, winner, base, request, interrupted=interrupted))


def _notes(
    found: Found, winner: str | None, base: Base, request: Request, *, interrupted: bool
) -> Iterator[str]:
    if interrupted:
        yield "Interrupted: places are of what was measured until then."
    yield RANDOM
    ranks = found.ranks()
    ahead = next((name for name in ranks if name not in found.over), None)
    if winner is not None and ranks[winner] > ranks[ahead]:
        place = next(place for place in found.places() if place.name == ahead)
        yield f"{ahead} was faster, but is not recommended: {place.reason}."
    if winner is not None:
        yield from _of_winner(found, winner, base)
    if STANDARD in found.candidates and STANDARD not in found.race.samples:
        yield "Standard was not measured, so nothing is said of being faster than it."
    open_ = [p for p in found.places() if p.status == "not measured"]
    if open_:
        yield (
            f"{len(open_)} compositions were not measured: {request.minutes:g} minutes were given "
            f"to those that promise most by closed form; --minutes or --mechanisms reaches others."
        )


def _of_winner(found: Found, winner: str, base: Base) -> Iterator[str]:
    place = next(place for place in found.places() if place.name == winner)
    one = found.candidates[winner].composition
    if winner != STANDARD:
        yield f"Quality of {winner}: {place.evidence_told}."
    if one.sinks and base.writes:
        yield "The window and its sinks are of the memory: a model trained without them forgets."
    if place.crossover is not None and place.crossover.at is not None:
        yield f"It is faster than Standard from {place.crossover.at} on, of the lengths measured."


RECIPE = "stdlib_bpe"  # whose text every machine has
INTO = "model"  # folder of the trained model


def python_lines(one: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return lines that build the model and use it once.

    Args:
        one: the candidate.
        base: the sizes.
        request: that named them.
    """
    named = {"model": request.model, "checkpoint": request.checkpoint, "length": request.length}
    given = "".join(f", {name}={value!r}" for name, value in named.items() if value is not None)
    lines = [
        "from suffice.advise import Composition, Request, base_of",
        f"base = base_of(Request(task={request.task!r}{given}))",
        f"one = Composition.parse({one.name!r})",
        "model = one.build(base)  # weights are random: train it, or give it trained ones",
    ]
    if one.composition.weights is not None:
        lines += [
            "from suffice.quantise import quantise",
            f"report = quantise(model, bits={one.composition.weights})  # when it is trained",
        ]
    return (*lines, *_used(base))


def _used(base: Base) -> list[str]:
    """Return lines that call the model."""
    config = base.config
    if isinstance(config, LMConfig):
        return [
            "from suffice.generate import generate",
            "written = generate(model, [[1, 2, 3]], max_new_tokens=8, memory=one.kept(base))",
        ]
    if isinstance(config, TranslatorConfig):
        return [
            "from suffice.generate.translate import translate",
            "told = translate(",
            "    model, [[1, 2, 3]], start=1, max_new_tokens=8, memory=one.kept(base)",
            ")",
        ]
    shape = (2, base.length)
    lines = ["import torch"]
    if base.task == "image":
        shape = (2, config.channels, config.image_size, config.image_size)
        return [*lines, f"logits = model.eval()(torch.randn{shape})"]
    return [*lines, f"logits = model.eval()(torch.randint({config.vocabulary_size}, {shape}))"]


def cli_lines(one: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return commands that train, convert or compare the recommended; none where none reaches it.

    Args:
        one: the candidate.
        base: the sizes.
        request: that named them.
    """
    composed = one.composition
    if base.task != "lm":
        if composed.changes:
            return ()
        others = "" if composed.mechanism == "standard" else f",{composed.mechanism}"
        return (f"suffice compare --recipe {base.name} --mechanisms standard{others}",)
    made = _converted(one, request) if request.checkpoint else _trained(one, base)
    if made is None:
        return ()
    folder, lines = made
    if composed.weights is not None:
        packed = f"{folder}-{composed.weights}bit"
        lines.append(f"suffice quantise {folder} --bits {composed.weights} --out {packed}")
        folder = packed
    return (*lines, f"suffice generate {folder}{_memory(one)}")


def _trained(one: Candidate, base: Base) -> tuple[str, list[str]]:
    """Return where a model is trained to, and how."""
    composed = one.composition
    settings = {"configuration": SHAPES.get(base.name, base.name), "length": base.length}
    if composed.kv is not None:
        settings["num_kv_heads"] = composed.kv
    if composed.softmax is not None:
        settings["softmax_every"] = composed.softmax
    if composed.window is not None and not composed.sinks:
        settings["window"] = composed.window
    if composed.full is not None:
        settings["full_every"] = composed.full
    told = " ".join(f"--set {name}={value}" for name, value in settings.items())
    named = f"--recipe {RECIPE} --mechanism {composed.mechanism}"
    return INTO, [f"suffice train {named} {told} --out {INTO}"]


def _converted(one: Candidate, request: Request) -> tuple[str, list[str]] | None:
    """Return where a trained model is converted to, and how; None where only training leads."""
    composed = one.composition
    if composed.softmax is not None or composed.full is not None:
        return None
    words = {"standard": [], "optimised": ["optimised"], "efficient": ["efficient"]}
    published = {"gqa": one.specs[0].kv_heads, "mqa": 1}
    if composed.mechanism in published:
        steps = [f"gqa:{composed.kv or published[composed.mechanism]}"]
    elif composed.mechanism in words:
        shared = [] if composed.kv is None else [f"gqa:{composed.kv}"]
        steps = [*shared, *words[composed.mechanism]]
    else:
        return None
    if composed.window is not None and not composed.sinks:
        steps.append(f"window:{composed.window}")
    folder = shlex.quote(str(request.checkpoint))
    if not steps:
        return folder, []
    return "converted", [f"suffice convert {folder} --to {','.join(steps)} --out converted"]


def _memory(one: Candidate) -> str:
    """Return the options that keep what the candidate keeps."""
    memory, told = one.memory, ""
    if isinstance(memory, Quantised):
        told = f" --quantise-memory {memory.bits}"
        memory = memory.inner
    if isinstance(memory, Rolling):
        sinks = f":{memory.sinks}" if memory.sinks else ""
        told = f" --memory rolling:{memory.window}{sinks}{told}"
    return told
