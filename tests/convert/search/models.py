"""A small language model, rows of tokens, and a library that is searched in a second."""

from __future__ import annotations

import torch

from suffice.convert.search import SearchTexts
from suffice.models import LMConfig
from suffice.patterns import Causal
from suffice.spec import AttentionSpec
from suffice.testing import drawn

LENGTH = 16
SIZES = {"vocabulary_size": 19, "length": LENGTH, "d_model": 16, "depth": 3, "mlp_width": 24}
WORDS = ("gqa:2", "gqa:1", "latent:4", "window:4+sinks:0", "gqa:2,window:4+sinks:0")


def model(seed=1, **fields):
    spec = AttentionSpec(**{"d_model": 16, "num_heads": 4, "pattern": Causal()} | fields)
    return drawn(LMConfig(**SIZES).build(spec), seed=seed).eval()


def rows(count=2, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randint(19, (4, LENGTH), generator=draws) for _ in range(count)]


def texts():
    return SearchTexts(calibration=rows(4), scoring=rows(2, seed=1), judging=rows(2, seed=2))
