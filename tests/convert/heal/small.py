"""A small language, a model trained on it, and conversions of that."""

from __future__ import annotations

import random
from functools import cache

import torch

from suffice import preset
from suffice.convert import convert
from suffice.convert.heal import Healing, Texts
from suffice.models import LMConfig
from suffice.text import Characters
from suffice.train.language import LMTraining, fit_lm

LETTERS = Characters("abcdefgh ")
SIZES = {"vocabulary_size": 9, "length": 16, "d_model": 16, "depth": 2, "mlp_width": 24}


def documents(count, seed):
    """Return texts of words, each of which is a run of the alphabet spelled twice."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    found = []
    for _ in range(count):
        words = []
        for _ in range(12):
            first, size = draw.randrange(8), draw.randint(2, 4)
            words += ["".join("abcdefgh"[(first + n) % 8] for n in range(size))] * 2
        found.append(" ".join(words))
    return found


def texts(folder):
    """Return the three texts of a healing."""
    return Texts.write(folder, (documents(40, 0), documents(6, 1), documents(6, 2)), LETTERS)


@cache
def teacher(dropout=0.0):
    """Return a model that has learned a little."""
    import tempfile
    from pathlib import Path

    torch.manual_seed(0)
    lm = LMConfig(**SIZES, dropout=dropout).build(preset("standard", 16, 4, causal=True))
    with tempfile.TemporaryDirectory() as folder:
        found = texts(Path(folder))
        training = LMTraining(steps=150, batch_size=8, length=16, learning_rate=0.01, warmup=5)
        fit_lm(lm, found.train, found.validation, training, seed=0)
    lm.zero_grad(set_to_none=True)
    return lm.eval()


@cache
def student(target, *, naive=False, dropout=0.0):
    """Return a conversion of the teacher."""
    rows = torch.tensor(LETTERS.encode("".join(documents(12, 3)))[: 16 * 48]).view(48, 16)
    lm = teacher(dropout)
    return convert(lm, target, calibration=list(rows.split(8)), naive=naive).model


def healing(**changes):
    """Return settings of a few steps."""
    given = {
        "minutes": None,
        "steps": 12,
        "batch_size": 4,
        "length": 16,
        "warmup": 2,
        "evaluate_every": 3,
        "evaluation_batches": 4,
        "regression_rate": 3e-3,
        "learning_rate": 3e-3,
    }
    return Healing(**(given | changes))
