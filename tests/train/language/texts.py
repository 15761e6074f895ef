"""A tiny language and tiny models of it, shared by the tests of training language models."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from suffice import preset
from suffice.models import LM, LMConfig
from suffice.text import Characters, TokenFile
from suffice.train.language import LMTraining

LETTERS = Characters("abcdefgh")


def documents(count: int, seed: int) -> list[str]:
    """Runs of the alphabet from a random letter on, of 3 to 20 letters."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    starts = [(draw.randrange(8), draw.randint(3, 20)) for _ in range(count)]
    return ["".join("abcdefgh"[(a + n) % 8] for n in range(size)) for a, size in starts]


def files(folder: Path) -> tuple[TokenFile, TokenFile]:
    return (
        TokenFile.write(folder / "train.bin", documents(60, 0), LETTERS),
        TokenFile.write(folder / "validation.bin", documents(12, 1), LETTERS),
    )


def tiny(
    *, seed: int = 0, dropout: float = 0.0, dtype: torch.dtype = torch.float32, **sizes: int
) -> LM:
    torch.manual_seed(seed)
    sizes = {"vocabulary_size": 8, "length": 12, "d_model": 16, "depth": 2, "mlp_width": 24} | sizes
    spec = preset("efficient", 16, 2, causal=True, dropout=dropout)
    return LMConfig(**sizes, dropout=dropout).build(spec, dtype=dtype)


def settings(**changes: object) -> LMTraining:
    """Settings that use everything."""
    options = {
        "steps": 6,
        "batch_size": 5,
        "length": 12,
        "learning_rate": 0.02,
        "min_learning_rate": 0.002,
        "warmup": 2,
        "weight_decay": 0.1,
        "clip": 0.7,
        "evaluate_every": 2,
        "documents": "separate",
    }
    return LMTraining(**(options | changes))
