"""Which attention is enough? Every mechanism behind one layer, measured side by side.

A name is imported when it is first used, so that `suffice --help` need not wait for torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from suffice.utils import ByName, Former, attributes

if TYPE_CHECKING:
    from suffice import masks
    from suffice.comparison.external import verdict
    from suffice.comparison.own_loop import compare
    from suffice.comparison.own_table import compare_data
    from suffice.layers import Attention, extend, from_torch, interpolate
    from suffice.loading import load
    from suffice.ops import attend, weights
    from suffice.presets import preset
    from suffice.spec import AttentionSpec
    from suffice.utils.torch_compat import threads

__version__ = "0.1.0"

_NAMES = {
    "layers": ("Attention", "extend", "from_torch", "interpolate"),
    "loading": ("load",),
    "comparison.external": ("verdict",),
    "comparison.own_loop": ("compare",),
    "comparison.own_table": ("compare_data",),
    "ops": ("attend", "weights"),
    "presets": ("preset",),
    "spec": ("AttentionSpec",),
    "utils.torch_compat": ("threads",),
}
__getattr__ = attributes(__name__, ByName.of(__name__, _NAMES))
sys.meta_path.insert(0, Former())

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


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted({*globals(), *__all__})
