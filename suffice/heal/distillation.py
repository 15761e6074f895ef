"""The second stage: the whole model learns the teacher's answers and the text's.

Letters: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.data.dataset import NOT_ASKED
from suffice.models import LM
from suffice.train.answers import losses
from suffice.train.language.batch import Batch
from suffice.train.language.loss import logits


class Distillation:
    """Divergence from the teacher's distribution of the next token, mixed with cross-entropy.

    Args:
        teacher: in evaluation.
        kl: share of the divergence, 0 to 1.
        facts: of both models, for the checkpoint.
    """

    def __init__(self, teacher: LM, kl: float, facts: Mapping[str, object] | None = None) -> None:
        self.teacher, self.kl = teacher, kl
        self.facts = {"name": "distillation", "kl": kl, **(facts or {})}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over the batch's targets."""
        found, targets = logits(model, batch, dtype=dtype)
        loss = losses(found, targets, reduction="sum") * (1.0 - self.kl)
        if not self.kl:
            return loss
        with torch.no_grad():
            wanted, _ = logits(self.teacher, batch, dtype=dtype)
        asked = targets != NOT_ASKED
        own, theirs = (F.log_softmax(one[asked], dim=-1) for one in (found, wanted))
        return loss + self.kl * F.kl_div(own, theirs, reduction="sum", log_target=True)


class Control:
    """Cross-entropy alone, on the model as it was before its conversion.

    Args:
        facts: of the model, for the checkpoint.
    """

    def __init__(self, facts: Mapping[str, object] | None = None) -> None:
        self.facts = {"name": "control", **(facts or {})}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over the batch's targets."""
        return losses(*logits(model, batch, dtype=dtype), reduction="sum")
