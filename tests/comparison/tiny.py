"""Models small enough to be written with in milliseconds."""

from __future__ import annotations

from typing import Any

from suffice.choose.bench import randomise
from suffice.models import LM, LMConfig
from suffice.models.configurations import layers
from suffice.positions import Rope

SIZES = {"vocabulary_size": 61, "length": 64, "d_model": 64, "depth": 2, "mlp_width": 96}


def llama(mechanism: str = "standard", *, heads: int = 4, position=None, **given: Any) -> LM:
    """Return a Llama; options of the mechanism and sizes of the model in place of its own."""
    own = {"activation": "swiglu", "norm": "rms", "positions": "none", "bias": False}
    sizes = SIZES | own
    config = LMConfig(**sizes | {name: given.pop(name) for name in {*sizes, "tied"} & {*given}})
    options = {"position": Rope() if position is None else position, **given}
    return randomise(config.build(layers(mechanism, config, heads, **options)))
