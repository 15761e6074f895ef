"""A model's logits beside the labels, whether a row asks once or at each of its tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data.dataset import NOT_ASKED
from suffice.shapes import check


def aligned(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [A, C], in float32 at least, and labels [A], one line for each place.

    Places where nothing is asked are among them, with the label NOT_ASKED.

    Shapes:
        logits: [B, C] for labels [B], or [B, T, C] for labels [B, T]

    Raises:
        ShapeError: if the model answers elsewhere than the labels ask.
    """
    check(
        "logits",
        logits,
        (*labels.shape, None),
        hint="The labels ask once for a row or at each token; give a model that answers there.",
    )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.flatten(0, labels.dim() - 1), labels.flatten()


def losses(
    logits: Tensor, labels: Tensor, *, reduction: str, label_smoothing: float = 0.0
) -> Tensor:
    """Return cross-entropies of what `aligned` gave, 0 where nothing is asked."""
    return F.cross_entropy(
        logits,
        labels,
        reduction=reduction,
        label_smoothing=label_smoothing,
        ignore_index=NOT_ASKED,
    )
