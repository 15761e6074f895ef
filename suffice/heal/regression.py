"""The first stage: converted layers learn what the teacher's layers give on what those read.

Letters: B rows, T tokens, M d_model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suffice.convert.moments import attentions, watched
from suffice.models import LM
from suffice.train.language.batch import Batch
from suffice.train.language.loss import autocast


class Regression:
    """Squared error of layers over the squares of the teacher's outputs, the mean of all layers.

    Shares are what makes layers of loud and of quiet outputs count alike.

    Args:
        teacher: in evaluation, its features in the student's order.
        layers: names of the layers that learn.
        facts: of both models, for the checkpoint.
    """

    def __init__(
        self, teacher: LM, layers: Sequence[str], facts: Mapping[str, object] | None = None
    ) -> None:
        self.teacher = teacher
        self.layers = tuple(layers)
        self.facts = {"name": "regression", "layers": list(layers), **(facts or {})}

    def summed(self, model: LM, batch: Batch, *, dtype: str) -> Tensor:
        """Return the mean share of the layers, times the batch's targets."""
        own, theirs = attentions(model), attentions(self.teacher)
        shares: list[Tensor] = []

        def seen(name: str, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
            with torch.enable_grad():
                found = own[name](x, **where)
                shares.append(_share(found, y, where.get("valid")))

        marks = {"valid": batch.valid, "segments": batch.segments}
        given = {name: mark for name, mark in marks.items() if mark is not None}
        with (
            torch.no_grad(),
            autocast(batch.tokens.device, dtype),
            watched({name: theirs[name] for name in self.layers}, seen),
        ):
            self.teacher(batch.tokens, **given)
        return torch.stack(shares).mean() * batch.asked


def _share(found: Tensor, wanted: Tensor, valid: Tensor | None) -> Tensor:
    """Return the squared error over the squares of what is wanted; [B, T, M] each."""
    found, wanted = found.float(), wanted.float()
    if valid is not None:
        found, wanted = found[valid], wanted[valid]
    return (found - wanted).square().sum() / wanted.square().sum().clamp(min=1e-12)
