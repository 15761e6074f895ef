"""The lines that make the recommended model, in Python and on the command line."""

from __future__ import annotations

import shlex

from suffice.advise.base import Base
from suffice.advise.candidates import Candidate
from suffice.advise.request import Request
from suffice.measure.edge.shapes import SHAPES
from suffice.memory import Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig

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
