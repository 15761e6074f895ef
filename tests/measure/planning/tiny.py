"""A recipe's training of the smallest language model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from suffice.measure.planning import Workload, workload
from suffice.models import LMConfig
from suffice.presets import preset

SIZES = {"vocabulary_size": 64, "length": 64, "d_model": 32, "depth": 1, "mlp_width": 64}


def tiny(**changes) -> Workload:
    """Return the training of shakespeare_char with one block of 32 features."""
    spec = preset("efficient", 32, 2, causal=True)
    built = {"build": partial(LMConfig(**SIZES).build, spec), "specs": (spec,)}
    return replace(workload("shakespeare_char"), **built, **changes)
