"""Utilities of all packages: records, files, progress, option grammar, torch compatibility."""

from __future__ import annotations

import gc
import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class ByName(UserDict[str, Any]):
    """Objects by name, each imported from the module of its entry when it is first looked up."""

    @classmethod
    def of(cls, package: str, names: Mapping[str, Sequence[str]]) -> ByName:
        """Return the table of a package from the names in each of its modules."""
        return cls({name: f"{package}.{module}" for module in names for name in names[module]})

    def __getitem__(self, name: str) -> Any:
        """Return an object, and keep it."""
        if isinstance(value := self.data[name], str):
            value = self.data[name] = getattr(import_without_collector(value), name)
        return value


def attributes(package: str, table: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: the objects of a table, else a module of it."""

    def attribute(name: str) -> Any:
        if name in table:
            return table[name]
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_without_collector(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


def import_without_collector(name: str) -> Any:
    """Import a module with the garbage collector off: it would search all of torch for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


FORMER = {
    "suffice.measure.advise": "suffice.choose",
    "suffice.measure.statistics": "suffice.utils.statistics",
    "suffice.measure.timing": "suffice.utils.timing",
    "suffice.measure": "suffice.comparison",
    "suffice.layers.lora": "suffice.layers.attention",
    "suffice.recipes": "suffice.train.recipes",
}


class Former:
    """Imports a module by the name that it had before, as the module that it is now."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of a former name; None for any other."""
        return ModuleSpec(name, self) if _now(name) else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave the making to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in the place of its former name."""
        sys.modules[module.__name__] = import_module(str(_now(module.__name__)))


def _now(name: str) -> str | None:
    for old, new in FORMER.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
