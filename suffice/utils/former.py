"""Former names of packages that moved."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

FORMER = {
    "suffice.measure.advise": "suffice.choose",
    "suffice.measure.statistics": "suffice.utils.statistics",
    "suffice.measure.timing": "suffice.utils.timing",
    "suffice.measure": "suffice.comparison",
    "suffice.recipes": "suffice.train.recipes",
}


class Former:
    """Imports a module by the name that it had before, as the module that it is now."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if _now(name) else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(str(_now(module.__name__)))


def _now(name: str) -> str | None:
    for old, new in FORMER.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
