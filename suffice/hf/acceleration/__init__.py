"""Stock models of transformers with our CPU kernels in place of their functions in PyTorch."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import transformers
from torch import nn
from transformers import PreTrainedModel

from suffice.errors import ConfigError
from suffice.hf.acceleration.replace import (
    is_foreign,
    is_rebound,
    methods_with_kernels,
    rebind,
    why_left,
)
from suffice.hf.acceleration.sequences import FUNCTIONS
from suffice.ops.native.library import why_not


@dataclass(frozen=True)
class Replaced:
    """A function that a layer no longer calls.

    Args:
        module: name of the layer in the model.
        kind: its class.
        function: name of what transformers calls.
    """

    module: str
    kind: str
    function: str


@dataclass(frozen=True)
class Left(Replaced):
    """A function that a layer still calls.

    Args:
        reason: why.
    """

    reason: str


@dataclass
class Acceleration:
    """What `accelerate` replaced in a model, and what it left.

    Args:
        model: the model.
        replaced: layer by layer.
        left: layer by layer, with reasons.
    """

    model: nn.Module
    replaced: list[Replaced] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def explain(self) -> str:
        """Return both as text, layers of one kind on one line."""
        device = next(self.model.parameters()).device
        title = f"{type(self.model).__name__} on {device}, transformers {transformers.__version__}"
        replaced = Counter((_numbers_out(r.module), r.kind, r.function) for r in self.replaced)
        left = Counter((_numbers_out(r.module), r.kind, r.function, r.reason) for r in self.left)
        lines = [title, "replaced:" if replaced else "nothing was replaced"]
        lines += [f"  {n} x {of} ({kind}): {name}" for (of, kind, name), n in replaced.items()]
        lines += ["left:"] if left else []
        lines += [
            f"  {n} x {of} ({kind}): {name}, {reason}"
            for (of, kind, name, reason), n in left.items()
        ]
        return "\n".join(lines)

    def undo(self) -> None:
        """Give the model back everything that transformers calls."""
        for module in self.model.modules():
            for name, _ in methods_with_kernels(module):
                if is_rebound(module, name):
                    del module.__dict__[name]
        self.replaced, self.left = [], []


def accelerate(model: nn.Module) -> Acceleration:
    """Let a stock model on a CPU call our kernels, forward and backward.

    The model keeps its class, weights, caches and `generate`. A model that was saved loads as a
    stock one. Calling this again changes nothing more.

    Args:
        model: a model of transformers, or one that wraps it, as PEFT does.

    Returns:
        What was replaced and what was left; `undo` takes it back.

    Raises:
        ConfigError: for a module that holds no model of transformers.
    """
    stock = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)
    if stock is None:
        raise ConfigError(
            f"{type(model).__name__} holds no model of transformers; give one that "
            "AutoModelForCausalLM or its like has loaded."
        )
    report = Acceleration(model)
    if reason := _why_nothing(model, stock):
        report.left.append(Left("model", type(stock).__name__, "everything", reason))
        return report
    for name, module in model.named_modules():
        kind = type(module).__name__
        for method, functions in methods_with_kernels(module):
            reasons = {called: why_left(called, f) for called, f in functions.items()}
            if is_foreign(module, method):
                reasons = dict.fromkeys(functions, f"something else has replaced its {method}")
            wanted = {called: FUNCTIONS[called] for called in functions if not reasons[called]}
            if wanted:
                rebind(module, method, wanted)
            report.replaced += [Replaced(name, kind, called) for called in wanted]
            report.left += [Left(name, kind, called, r) for called, r in reasons.items() if r]
    return report


def _why_nothing(model: nn.Module, stock: PreTrainedModel) -> str | None:
    """Return why nothing of a model can be replaced, or None."""
    devices = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
    if devices:
        return f"it has parameters on {', '.join(sorted(devices))}: our kernels are for the CPU"
    if absent := why_not():
        return f"there are no native kernels: {absent}"
    origin = type(stock).__module__
    if not origin.startswith("transformers."):
        return f"its class is from {origin}, not from transformers"
    return None


def _numbers_out(name: str) -> str:
    """Return the name of a layer without its number, the same for all layers of a kind."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
