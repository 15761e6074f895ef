"""How much worse a language model predicts text that nothing was fitted to.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.convert.certificate import LossChange
from suffice.measure.statistics import summarise
from suffice.models import LM

TOGETHER = 8  # rows computed at once


@torch.inference_mode()
def losses(
    lm: LM, rows: Tensor, step: Callable[[int, int], None] = lambda _done, _total: None
) -> list[float]:
    """Return the mean loss of each row, nats per token.

    Args:
        lm: in evaluation.
        rows: int [B, T]; every token but a row's first is predicted.
        step: told how many rows of how many are done.
    """
    found: list[float] = []
    for batch in rows.to(lm.device).split(TOGETHER):
        logits = lm(batch[:, :-1]).double().transpose(1, 2)
        found += F.cross_entropy(logits, batch[:, 1:], reduction="none").mean(dim=1).tolist()
        step(len(found), len(rows))
    return found


def change_of_loss(before: list[float], after: list[float], tokens: int) -> LossChange:
    """Return the paired change of some rows' losses.

    Args:
        before: of each row.
        after: of the same rows.
        tokens: predicted in all.
    """
    found = summarise([b - a for a, b in zip(before, after, strict=True)])
    return LossChange(
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        change=found.mean,
        low=found.low,
        high=found.high,
        rows=len(before),
        tokens=tokens,
    )
