"""The certificate of a conversion: the changes of outputs and loss, proven or measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.models import LM
from suffice.utils.statistics import summarise

ROWS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class LayerCertificate:
    """The change of one layer."""

    name: str  # name of its module
    target: str  # the change in words
    exact: bool  # whether the layer computes the same as before, up to rounding
    # largest change of an output relative to the largest output, in float64 on random inputs; None
    # where the layer is not exact
    difference: float | None = None
    # root mean square of the change of its output relative to that of its output, on the
    # calibration text, by the regression; None where the layer is exact
    predicted: float | None = None
    # `predicted` for the converted layer, on held-out text; None without such text
    measured: float | None = None
    # "closed form", or the name of the usual start ("average", ...) where that lost less on the
    # calibration text after its refit; "" where the layer is exact
    chosen: str = ""
    # tokens up to which a window changes nothing; None: no such limit
    exact_up_to: int | None = None
    state_before: int  # numbers that its state holds per token
    state_after: int  # numbers per token after the conversion
    parameters_before: int  # parameters of the layer
    parameters_after: int  # parameters after the conversion


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """A change of the loss on held-out text, paired by row."""

    before: float  # nats per token
    after: float  # nats per token
    change: float  # mean of the rows' differences
    low: float | None  # lower end of its 95% interval; None for one row
    high: float | None  # upper end
    rows: int  # rows of text
    tokens: int  # tokens that were predicted


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
def row_losses(lm: LM, rows: Tensor, *, whole: bool = False) -> list[float]:
    """Return the mean loss of each row, nats per token; the model reads its last token if whole."""
    losses: list[float] = []
    for batch in rows.to(lm.device).split(ROWS_AT_ONCE):
        for logits, row in zip(lm(batch if whole else batch[:, :-1]), batch, strict=True):
            wanted = row[1:]  # row by row, as float64 of a large vocabulary takes memory
            losses.append(F.cross_entropy(logits[: len(wanted)].double(), wanted).item())
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
