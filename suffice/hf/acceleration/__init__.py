"""Stock models of transformers with our CPU kernels in place of their functions in PyTorch."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers import __version__ as VERSION

from suffice.errors import ConfigError
from suffice.hf.acceleration import layers
from suffice.hf.acceleration.attention import NAME
from suffice.hf.acceleration.layers import forward_of, kind_of
from suffice.hf.acceleration.sequences import FUNCTIONS, LEFT
from suffice.layers.stock import implementations
from suffice.ops.native.library import why_not

Functions = Mapping[str, Callable[..., Any]]
OURS = FUNCTIONS | layers.ROTARY
KERNEL_NAME = "use_kernel_func_from_hub_with_fallback"
"""transformers' decorator of functions that a kernel may stand for."""
SCANS = ("torch_chunk_gated_delta_rule", "mamba2_chunk_scan")
"""Functions of ours that keep the documents of a row apart."""
BEFORE = "_attention_before_suffice"
"""Attribute of a model: what `set_attn_implementation` takes to undo ours."""


@dataclass(frozen=True)
class Piece:
    """A function that a layer called before, or calls still."""

    module: str  # name of the layer in the model
    kind: str  # its class
    function: str  # name of what transformers calls
    reason: str = ""  # why it was left; "" if it was replaced


@dataclass(repr=False)
class Acceleration:
    """What `accelerate` replaced in a model, and what it left."""

    model: nn.Module  # the model
    replaced: list[Piece] = field(default_factory=list)  # layer by layer
    left: list[Piece] = field(default_factory=list)  # layer by layer, with reasons

    def explain(self) -> str:
        """Return both as text, layers of one kind on one line."""
        device = next(self.model.parameters()).device
        lines = [f"{type(self.model).__name__} on {device}, transformers {VERSION}"]
        for title, pieces in (("replaced", self.replaced), ("left", self.left)):
            lines.append(f"{title}:" if pieces else f"{title}: nothing")
            counts = Counter(replace(p, module=_numbers_out(p.module)) for p in pieces)
            lines += [
                f"  {number} x {of.module} ({of.kind}): {of.function}"
                + (f", {of.reason}" if of.reason else "")
                for of, number in counts.items()
            ]
        for kind in sorted({piece.kind for piece in self.replaced if piece.function in SCANS}):
            lines.append(f"documents of a packed row: {kind}, by seq_idx and cu_seq_lens_q")
            if not _passes_documents(stock := _stock(self.model)):
                called = f"{type(stock).__name__} does not pass them on: call model."
                lines[-1] += f"; {called}{stock.base_model_prefix}(...)"
        return "\n".join(lines)

    __repr__ = explain

    def undo(self) -> None:
        """Give the model back everything that transformers calls."""
        stock = _stock(self.model)
        if before := stock.__dict__.pop(BEFORE, None):
            stock.set_attn_implementation(before)
        for module in self.model.modules():
            for name in [name for name in module.__dict__ if is_rebound(module, name)]:
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
    stock = _stock(model)
    report = Acceleration(model)
    if reason := _why_nothing(model, stock):
        report.left.append(Piece("model", type(stock).__name__, "everything", reason))
        return report
    _replace_attention(model, stock, report)
    for name, module in model.named_modules():
        kind = type(module).__name__
        for method, functions in methods_with_kernels(module):
            reasons = {called: why_left(called, f) for called, f in functions.items()}
            if is_foreign(module, method):
                reasons = dict.fromkeys(functions, f"something else has replaced its {method}")
            wanted = {called: OURS[called] for called in functions if not reasons[called]}
            if wanted:
                rebind(module, method, wanted)
            report.replaced += [Piece(name, kind, called) for called in wanted]
            report.left += [Piece(name, kind, called, r) for called, r in reasons.items() if r]
        if what := kind_of(module):
            reason = _why_layer_left(module)
            (report.left if reason else report.replaced).append(Piece(name, kind, what, reason))
    return report


def _why_layer_left(module: nn.Module) -> str:
    """Give a layer a forward of ours; return why it keeps its own, "" if it does not."""
    foreign = is_foreign(module, "forward")
    forward = "something else has replaced its forward" if foreign else forward_of(module)
    if isinstance(forward, str):
        return forward
    module.__dict__["forward"] = forward
    return ""


def _passes_documents(stock: PreTrainedModel) -> bool:
    name = stock.base_model_prefix
    if not hasattr(stock, name):
        return True
    source = inspect.getsource(inspect.unwrap(type(stock).forward))
    call = re.search(rf"self\.{name}\((.*?)\n        \)", source, re.DOTALL)
    return call is not None and "**kwargs" in call[1]


def _stock(model: nn.Module) -> PreTrainedModel:
    stock = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)
    if stock is None:
        raise ConfigError(
            f"{type(model).__name__} holds no model of transformers; give one that "
            "AutoModelForCausalLM or its like has loaded."
        )
    return stock


def _replace_attention(model: nn.Module, stock: PreTrainedModel, report: Acceleration) -> None:
    takes_any = stock._supports_attention_backend or stock._supports_sdpa
    is_ours = stock.config._attn_implementation == NAME
    if takes_any and stock._can_set_attn_implementation() and not is_ours:
        stock.__dict__[BEFORE] = implementations(stock.config)
        stock.set_attn_implementation(NAME)
    for name, module in model.named_modules():
        kind = type(module).__name__
        if calls_interface(module) and getattr(module.config, "_attn_implementation", None) == NAME:
            biased = "position_bias" in inspect.unwrap(type(module).forward).__code__.co_varnames
            reason = "it adds biases of positions to the scores" if biased else ""
            (report.left if biased else report.replaced).append(
                Piece(name, kind, "attention", reason)
            )
        elif kind.endswith("Attention") and not any(map(calls_interface, module.modules())):
            reason = "it does not call the AttentionInterface of transformers"
            report.left.append(Piece(name, kind, "attention", reason))


def _why_nothing(model: nn.Module, stock: PreTrainedModel) -> str | None:
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


def calls_interface(module: nn.Module) -> bool:
    """Return whether the module's forward calls the attention that its configuration names."""
    inner = inspect.unwrap(type(module).forward)
    return "ALL_ATTENTION_FUNCTIONS" in getattr(inner, "__code__", _nothing.__code__).co_names


def _nothing() -> None:
    """Stand for a forward that is not a function of Python."""


def methods_with_kernels(module: nn.Module) -> Iterator[tuple[str, Functions]]:
    """Yield methods of the module's class and the functions in them that kernels may replace."""
    for name, method in inspect.getmembers(type(module), inspect.isfunction):
        inner = inspect.unwrap(method)
        scope = inner.__globals__
        functions = {
            called: scope[called]
            for called in inner.__code__.co_names
            if called in scope and _may_be_replaced(called, scope[called])
        }
        if functions:
            yield name, functions


def _may_be_replaced(name: str, value: object) -> bool:
    made_by = getattr(value, "__code__", None)
    if made_by is None or name in layers.ROTARY:
        # with the package `kernels` the decorated function is an object
        return name in OURS or name in LEFT
    return KERNEL_NAME in made_by.co_qualname


def why_left(name: str, function: Callable[..., Any]) -> str | None:
    """Return why a function stays transformers' own, None for one that we replace."""
    if name in LEFT:
        return LEFT[name]
    if name not in OURS:
        return "this function is not known here"
    theirs, ours = (inspect.signature(f).parameters for f in (function, OURS[name]))
    new = [argument for argument in theirs if argument not in ours and argument != "kwargs"]
    if new:
        return f"it has arguments that are not known here: {', '.join(new)}"
    if name in layers.ROTARY and not layers.turns_by_halves(function):
        return "it turns features in another way"
    return None


def rebind(module: nn.Module, method: str, functions: Functions) -> None:
    """Give the module its own method that calls other functions; a pickled one has its class's."""
    copy = _with_globals(getattr(type(module), method), functions)
    module.__dict__[method] = MethodType(copy, module)


def is_rebound(module: nn.Module, method: str) -> bool:
    """Return whether `rebind` gave the module this method."""
    function = getattr(module.__dict__.get(method), "__func__", None)
    if function is None:
        return False
    return function.__module__ == layers.__name__ or "__name__" not in (
        inspect.unwrap(function).__globals__
    )


def is_foreign(module: nn.Module, method: str) -> bool:
    """Return whether something else gave the module this method, as offloading does."""
    if method not in module.__dict__ or is_rebound(module, method):
        return False
    # a module that was unpickled may hold the method of its class
    return getattr(module.__dict__[method], "__func__", None) is not getattr(type(module), method)


def _with_globals(function: FunctionType, functions: Functions) -> FunctionType:
    """Return a copy of a function, and of what it wraps, that finds other functions by name."""
    wrapped = getattr(function, "__wrapped__", None)
    scope, closure = function.__globals__, function.__closure__ or ()
    if wrapped is None:
        scope = scope | dict(functions)
        del scope["__name__"]  # torch.compile would look names up in the module of this name
    else:
        inner = _with_globals(wrapped, functions)
        closure = tuple(
            CellType(inner) if cell.cell_contents is wrapped else cell for cell in closure
        )
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, closure or None
    )
    copy.__dict__.update(function.__dict__)
    if wrapped is not None:
        copy.__wrapped__ = inner
    copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return copy
