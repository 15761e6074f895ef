"""The arguments that the tests pass: which parameters of a module have only their default.

`python -m pytest -p tests.arguments --arguments suffice.sklearn,suffice.cli.fits tests/...` prints,
for every public function, method and class of these modules, the parameters with a default that no
call changed. Calls in other processes are not seen, so leave out `-n`.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import threading
from importlib import import_module
from types import CodeType, FrameType, FunctionType
from typing import Any

DEFAULTS: dict[CodeType, tuple[str, dict[str, Any]]] = {}
PASSED: set[tuple[str, str]] = set()


def pytest_addoption(parser):
    parser.addoption("--arguments", default="", help="modules or packages, with commas between")


def pytest_collection_finish(session):
    """Begin to watch the calls of what the named modules define."""
    names = session.config.getoption("arguments").split(",")
    for module in (module for name in names for module in modules(name)):
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__:
                watch(f"{module.__name__}.{name}", value)
    threading.settrace(note)
    sys.settrace(note)


def modules(name):
    """Yield a module and those below it."""
    module = import_module(name)
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from modules(f"{name}.{found.name}")


def watch(name: str, value: object) -> None:
    """Keep the defaults of a function, or of the methods of a class, unless it is private."""
    last = name.rpartition(".")[2]
    if last.startswith("_") and last != "__init__":
        return
    if inspect.isclass(value):
        for member, method in vars(value).items():
            watch(f"{name}.{member}", getattr(method, "__func__", method))
    elif isinstance(function := inspect.unwrap(value) if callable(value) else value, FunctionType):
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        if defaults:
            DEFAULTS[function.__code__] = (name, defaults)


def note(frame: FrameType, event: str, _: object) -> None:
    """Note the parameters of a call that have another value than their default."""
    if event == "call" and frame.f_code in DEFAULTS:
        name, defaults = DEFAULTS[frame.f_code]
        for parameter, default in defaults.items():
            if repr(frame.f_locals[parameter]) != repr(default):
                PASSED.add((name, parameter))


def pytest_terminal_summary(terminalreporter):
    sys.settrace(None)
    every = [(name, one) for name, defaults in DEFAULTS.values() for one in defaults]
    for name, parameter in sorted({*every} - PASSED):
        terminalreporter.write_line(f"only its default: {name}({parameter})")
    passed = len({*every} & PASSED)
    terminalreporter.write_line(f"{passed} of {len(every)} parameters have had another value")
