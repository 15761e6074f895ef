"""Which attention is enough? Every mechanism behind one layer, measured side by side.

A name is imported when it is first used, so that `suffice --help` need not wait for torch.
"""

from __future__ import annotations

import gc
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from suffice import masks
    from suffice.layers import Attention, extend, from_torch, interpolate
    from suffice.loading import load
    from suffice.measure.external import verdict
    from suffice.measure.own_loop import compare
    from suffice.measure.own_table import compare_data
    from suffice.ops import attend, weights
    from suffice.presets import preset
    from suffice.spec import AttentionSpec
    from suffice.utils.torch_compat import threads

__version__ = "0.1.0"

_MODULES = {
    "Attention": "suffice.layers",
    "AttentionSpec": "suffice.spec",
    "attend": "suffice.ops",
    "compare": "suffice.measure.own_loop",
    "compare_data": "suffice.measure.own_table",
    "extend": "suffice.layers",
    "from_torch": "suffice.layers",
    "interpolate": "suffice.layers",
    "load": "suffice.loading",
    "preset": "suffice.presets",
    "threads": "suffice.utils.torch_compat",
    "verdict": "suffice.measure.external",
    "weights": "suffice.ops",
}
"""The module that defines each public name."""

__all__ = [
    "Attention",
    "AttentionSpec",
    "__version__",
    "attend",
    "compare",
    "compare_data",
    "extend",
    "from_torch",
    "interpolate",
    "load",
    "masks",
    "preset",
    "threads",
    "verdict",
    "weights",
]


def __getattr__(name: str) -> object:
    """Import a public name, or a module of the package, when it is first used."""
    if name in _MODULES:
        value = getattr(_import(_MODULES[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return _import(f"{__name__}.{name}")
    raise AttributeError(f"module 'suffice' has no attribute {name!r}")


def _import(name: str) -> ModuleType:
    """Import a module with the garbage collector off: it would search all of torch for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted({*globals(), *__all__})
