"""Other functions under the names that the methods of one module call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from suffice.hf.acceleration import layers
from suffice.hf.acceleration.sequences import FUNCTIONS, LEFT

Functions = Mapping[str, Callable[..., Any]]
OURS = FUNCTIONS | layers.ROTARY
KERNEL_NAME = "use_kernel_func_from_hub_with_fallback"
"""transformers' decorator of functions that a kernel may stand for."""


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
