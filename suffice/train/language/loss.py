"""The loss of a language model: summed over the targets, in fp32 whatever the products are in.

What a training lowers is an `Objective`; cross-entropy is the usual one, and what the weights are
chosen by whatever was lowered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from suffice.train.answers import aligned, losses
from suffice.train.language.batch import Batch
from suffice.train.language.settings import DTYPES


class Objective(Protocol):
    """What a training lowers.

    Attributes:
        facts: what makes this objective this objective, for the checkpoint; JSON, empty for
            cross-entropy.
    """

    facts: Mapping[str, object]

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over a batch's targets, fp32, for which gradients are computed."""


class CrossEntropy:
    """The loss of the targets themselves."""

    facts: Mapping[str, object] = {}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum of the losses of a batch's targets."""
        return summed(model, batch, dtype=dtype)


def autocast(device: torch.device, dtype: str) -> contextlib.AbstractContextManager[object]:
    """Return the block in which products are computed in a dtype of `LMTraining`."""
    lower = DTYPES[dtype]
    if lower is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=lower)


def summed(model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
    """Return the sum of the losses of a batch's targets, fp32; 0 where nothing is asked.

    Raises:
        ShapeError: if the model does not give logits for each token.
    """
    return losses(*logits(model, batch, dtype=dtype), reduction="sum")


def logits(model: nn.Module, batch: Batch, *, dtype: str) -> tuple[Tensor, Tensor]:
    """Return the logits [B T, V] and the targets [B T] of a batch."""
    where = {"valid": batch.valid, "segments": batch.segments}
    given = {name: marks for name, marks in where.items() if marks is not None}
    with autocast(batch.tokens.device, dtype):
        found = model(batch.tokens, **given)
    return aligned(found, batch.targets)
