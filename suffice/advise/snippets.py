"""Python and command lines that build, train and use the recommended model."""

from __future__ import annotations

import shlex

from suffice.advise.candidates import Candidate
from suffice.advise.request import Base, Request
from suffice.measure.edge.shapes import SHAPES
from suffice.memory import Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig

RECIPE = "stdlib_bpe"  # whose text every machine has
TRAINED = "model"  # folder of the trained model


def python_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return lines that build the model and use it once.

    Args:
        candidate: the recommended one.
        base: the sizes.
        request: that named them.
    """
    sizes = {"model": request.model, "checkpoint": request.checkpoint, "length": request.length}
    options = "".join(f", {name}={value!r}" for name, value in sizes.items() if value is not None)
    lines = [
        "from suffice.advise import Composition, Request, base_of",
        f"base = base_of(Request(task={request.task!r}{options}))",
        f"composition = Composition.parse({candidate.name!r})",
        "model = composition.build(base)  # weights are random: train it, or give it trained ones",
    ]
    if candidate.composition.weights is not None:
        lines += [
            "from suffice.quantise import quantise",
            f"report = quantise(model, bits={candidate.composition.weights})  # when it is trained",
        ]
    return (*lines, *_usage(base))


def _usage(base: Base) -> list[str]:
    config = base.config
    if isinstance(config, LMConfig):
        return [
            "from suffice.generate import generate",
            "memory = composition.memory_for(base)",
            "written = generate(model, [[1, 2, 3]], max_new_tokens=8, memory=memory)",
        ]
    if isinstance(config, TranslatorConfig):
        return [
            "from suffice.generate.translate import translate",
            "memory = composition.memory_for(base)",
            "translated = translate(model, [[1, 2, 3]], start=1, max_new_tokens=8, memory=memory)",
        ]
    shape = (2, base.length)
    lines = ["import torch"]
    if base.task == "image":
        shape = (2, config.channels, config.image_size, config.image_size)
        return [*lines, f"logits = model.eval()(torch.randn{shape})"]
    return [*lines, f"logits = model.eval()(torch.randint({config.vocabulary_size}, {shape}))"]


def cli_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return commands that train, convert or compare the recommended; none where none reaches it.

    Args:
        candidate: the recommended one.
        base: the sizes.
        request: that named them.
    """
    composition = candidate.composition
    if base.task != "lm":
        if composition.changes:
            return ()
        others = "" if composition.mechanism == "standard" else f",{composition.mechanism}"
        return (f"suffice compare --recipe {base.name} --mechanisms standard{others}",)
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
    """Return the folder of the trained model, and the command."""
    composition = candidate.composition
    settings = {"configuration": SHAPES.get(base.name, base.name), "length": base.length}
    if composition.kv is not None:
        settings["num_kv_heads"] = composition.kv
    if composition.softmax is not None:
        settings["softmax_every"] = composition.softmax
    if composition.window is not None and not composition.sinks:
        settings["window"] = composition.window
    if composition.full is not None:
        settings["full_every"] = composition.full
    options = " ".join(f"--set {name}={value}" for name, value in settings.items())
    recipe = f"--recipe {RECIPE} --mechanism {composition.mechanism}"
    return TRAINED, [f"suffice train {recipe} {options} --out {TRAINED}"]


def _convert(candidate: Candidate, request: Request) -> tuple[str, list[str]] | None:
    """Return the folder of the converted model, and the command; None where it must be trained."""
    composition = candidate.composition
    if composition.softmax is not None or composition.full is not None:
        return None
    targets = {"standard": [], "optimised": ["optimised"], "efficient": ["efficient"]}
    published = {"gqa": candidate.specs[0].kv_heads, "mqa": 1}
    if composition.mechanism in published:
        steps = [f"gqa:{composition.kv or published[composition.mechanism]}"]
    elif composition.mechanism in targets:
        shared = [] if composition.kv is None else [f"gqa:{composition.kv}"]
        steps = [*shared, *targets[composition.mechanism]]
    else:
        return None
    if composition.window is not None and not composition.sinks:
        steps.append(f"window:{composition.window}")
    folder = shlex.quote(str(request.checkpoint))
    if not steps:
        return folder, []
    return "converted", [f"suffice convert {folder} --to {','.join(steps)} --out converted"]


def _memory_options(candidate: Candidate) -> str:
    memory, options = candidate.memory, ""
    if isinstance(memory, Quantised):
        options = f" --quantise-memory {memory.bits}"
        memory = memory.inner
    if isinstance(memory, Rolling):
        sinks = f":{memory.sinks}" if memory.sinks else ""
        options = f" --memory rolling:{memory.window}{sinks}{options}"
    return options
