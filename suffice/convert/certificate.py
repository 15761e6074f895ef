"""The certificate of a conversion: the changes of outputs and loss, proven or measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.measure.statistics import summarise
from suffice.models import LM

ROWS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class LayerCertificate:
    """The change of one layer.

    Args:
        name: name of its module.
        target: the change in words.
        exact: whether the layer computes the same as before, up to rounding.
        difference: largest change of an output relative to the largest output, in float64 on
            random inputs; None where the layer is not exact.
        predicted: root mean square of the change of its output relative to that of its output, on
            the calibration text, by the regression; None where the layer is exact.
        measured: `predicted` for the converted layer, on held-out text; None without such text.
        chosen: "closed form", or the name of the usual start ("average", ...) where that lost less
            on the calibration text after its refit; "" where the layer is exact.
        exact_up_to: tokens up to which a window changes nothing; None: no such limit.
        state_before: numbers that its state holds per token.
        state_after: numbers per token after the conversion.
        parameters_before: parameters of the layer.
        parameters_after: parameters after the conversion.
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
    """A change of the loss on held-out text, paired by row.

    Args:
        before: nats per token.
        after: nats per token.
        change: mean of the rows' differences.
        low: lower end of its 95% interval; None for one row.
        high: upper end.
        rows: rows of text.
        tokens: tokens that were predicted.
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
    """The changes of all attention layers of a model.

    Args:
        layers: one entry each.
        naive: whether the usual starts were taken without any fit.
        calibration_tokens: tokens that the fits read; 0 where nothing was fitted.
        loss: change on held-out text; None without such text.
    """

    layers: tuple[LayerCertificate, ...]
    naive: bool = False
    calibration_tokens: int = 0
    loss: LossChange | None = None

    @property
    def exact(self) -> bool:
        """Whether every layer is."""
        return all(layer.exact for layer in self.layers)

    @property
    def kind(self) -> str:
        """The claim: "exact" or "approximate"."""
        return "exact" if self.exact else "approximate"

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        return {"kind": self.kind, **asdict(self)}


@torch.inference_mode()
def row_losses(lm: LM, rows: Tensor) -> list[float]:
    """Return the mean loss of each row, nats per token."""
    losses: list[float] = []
    for batch in rows.to(lm.device).split(ROWS_AT_ONCE):
        logits = lm(batch[:, :-1]).double().transpose(1, 2)
        losses += F.cross_entropy(logits, batch[:, 1:], reduction="none").mean(dim=1).tolist()
    return losses


def change_of_loss(before: list[float], after: list[float], tokens: int) -> LossChange:
    """Return the change of the losses of rows, paired by row."""
    differences = summarise([b - a for a, b in zip(before, after, strict=True)])
    return LossChange(
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        change=differences.mean,
        low=differences.low,
        high=differences.high,
        rows=len(before),
        tokens=tokens,
    )
