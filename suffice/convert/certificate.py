"""What a conversion is known to have changed, and how that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.measure.statistics import summarise
from suffice.models import LM


@dataclass(frozen=True, kw_only=True)
class LayerCertificate:
    """What became of one layer.

    Args:
        name: of its module.
        target: the changes in words.
        exact: whether it computes what it did: the change was recognised, and `difference` is
            rounding.
        difference: largest change of an output over the largest output, in float64 on drawn
            inputs; None where the layer is not exact.
        predicted: root mean square of the change of its output over that of its output, on the
            calibration text, as the regression tells; None where the layer is exact.
        measured: the same of the finished layer on held-out text; None where there is none.
        chosen: "closed form", or "average" and the like where the usual start, refitted, lost less
            on the calibration text; "" where the layer is exact.
        exact_up_to: tokens up to which a window changes nothing; None = no such limit.
        state_before: numbers its state keeps of each token.
        state_after: the same now.
        parameters_before: learned numbers.
        parameters_after: the same now.
    """

    name: str
    target: str
    exact: bool
    difference: float | None = None
    predicted: float | None = None
    measured: float | None = None
    chosen: str = ""
    exact_up_to: int | None = None
    state_before: int
    state_after: int
    parameters_before: int
    parameters_after: int


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """How the loss on held-out text changed: paired by row.

    Args:
        before: nats per token.
        after: nats per token.
        change: mean of the rows' differences.
        low: lower end of its 95% interval; None for one row.
        high: upper end.
        rows: of text.
        tokens: predicted ones.
    """

    before: float
    after: float
    change: float
    low: float | None
    high: float | None
    rows: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a conversion changed.

    Args:
        layers: of each attention layer.
        naive: whether the usual starts were asked for, without any fit.
        calibration_tokens: that were read to fit; 0 where nothing was.
        loss: on held-out text; None where there is none.
    """

    layers: tuple[LayerCertificate, ...]
    naive: bool = False
    calibration_tokens: int = 0
    loss: LossChange | None = None

    @property
    def exact(self) -> bool:
        """Whether every layer is."""
        return all(one.exact for one in self.layers)

    @property
    def kind(self) -> str:
        """The claim: "exact" or "approximate"."""
        return "exact" if self.exact else "approximate"

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        return {"kind": self.kind, **asdict(self)}


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
