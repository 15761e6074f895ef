"""Python lines and commands that build, train and run a recommended composition."""

from __future__ import annotations

import shlex

from suffice.measure.advise.request import Base, Candidate, Request
from suffice.measure.advise.timing import command
from suffice.measure.edge.shapes import SHAPES
from suffice.memory import Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD


def python_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return lines of Python that build a model with a composition and use it."""
    sizes = {"model": request.model, "checkpoint": request.checkpoint, "length": request.length}
    options = "".join(f", {name}={value!r}" for name, value in sizes.items() if value is not None)
    lines = [
        "from suffice.measure.advise import Composition, Request, base_of",
        f"base = base_of(Request(task={request.task!r}{options}))",
        f"composition = Composition.parse({candidate.name!r})",
        "model = base.build(composition)  # weights are random: train it, or give it trained ones",
    ]
    if (bits := candidate.composition.weights) is not None:
        lines.append("from suffice.quantise import quantise")
        lines.append(f"report = quantise(model, bits={bits})  # when it is trained")
    config, written = base.config, "max_new_tokens=8, memory=base.memory_for(composition))"
    if isinstance(config, LMConfig):
        lines.append("from suffice.generate import generate")
        lines.append(f"written = generate(model, [[1, 2, 3]], {written}")
    elif isinstance(config, TranslatorConfig):
        lines.append("from suffice.generate.translate import translate")
        lines.append(f"translated = translate(model, [[1, 2, 3]], start=1, {written}")
    else:
        inputs = f"torch.randint({getattr(config, 'vocabulary_size', 0)}, {(2, base.length)})"
        if isinstance(config, ViTConfig):
            side = config.image_size
            inputs = f"torch.randn{(2, config.channels, side, side)}"
        lines += ["import torch", f"logits = model.eval()({inputs})"]
    return tuple(lines)


def cli_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return commands that train, convert or compare a composition; () if none can."""
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
    memory, options = candidate.memory, ""
    if isinstance(memory, Quantised):
        values = "" if memory.value_bits is None else f":{memory.value_bits}"
        options, memory = f" --quantise-memory {memory.bits}{values}", memory.inner
    if isinstance(memory, Rolling):
        sinks = f":{memory.sinks}" if memory.sinks else ""
        options = f" --memory rolling:{memory.window}{sinks}{options}"
    return (*lines, f"suffice generate {folder}{options}")


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
    mechanism, heads = composition.mechanism, composition.kv
    if composition.softmax is not None or composition.full is not None:
        return None
    if mechanism in ("gqa", "mqa"):
        heads = candidate.specs[0].kv_heads
    elif mechanism not in ("standard", "optimised", "efficient"):
        return None
    steps = [] if heads is None else [f"gqa:{heads}"]
    steps += [mechanism] if mechanism in ("optimised", "efficient") else []
    if composition.window is not None and not composition.sinks:
        steps.append(f"window:{composition.window}+sinks:0")
    folder = shlex.quote(str(request.checkpoint))
    if not steps:
        return folder, []
    return "converted", [f"suffice convert {folder} --to {','.join(steps)} --out converted"]
