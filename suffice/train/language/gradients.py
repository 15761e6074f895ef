"""The gradient of one step: of the mean loss over the targets of the whole global batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from suffice.layers.dropout import Dropout
from suffice.train.distributed import Processes
from suffice.train.language.batch import Source, shares
from suffice.train.language.loss import CrossEntropy, Objective
from suffice.train.language.settings import LMTraining


def accumulate(
    replica: nn.Module,
    source: Source,
    step: int,
    training: LMTraining,
    *,
    processes: Processes,
    dropouts: Sequence[Dropout],
    device: torch.device,
    objective: Objective | None = None,
) -> tuple[Tensor, int]:
    """Add the gradient to the parameters; return this process's sums and how many targets all had.

    The weight of a target must be known before the first micro-batch is computed, so the targets
    are counted first. DDP averages over the processes: hence the factor of their number. A batch
    without any target gives gradients of 0.

    Args:
        replica: what `processes.wrap` made of the model.
        source: of the rows.
        step: whose rows.
        training: the settings.
        processes: that share the batch.
        dropouts: the layers that draw masks for the whole micro-batch.
        device: of the model.
        objective: what the loss is; None = cross-entropy.

    Returns:
        float64 [2], the summed loss and the targets of this process; the targets of all.
    """
    parts = shares(training.batch_size, training.accumulate, processes)
    batches = [source.rows(step, start, stop) for start, stop, _, _ in parts]
    own = sum(batch.asked for batch in batches)
    asked = int(processes.sum(torch.tensor(own)))
    weight = processes.world_size / max(asked, 1)
    total = torch.zeros((), dtype=torch.float64, device=device)
    objective = objective or CrossEntropy()
    for number, (batch, (_, _, first, rows)) in enumerate(zip(batches, parts, strict=True), 1):
        for dropout in dropouts:
            dropout.rows = (first, rows)
        last = number == len(batches)
        with contextlib.nullcontext() if last else processes.apart(replica):
            loss = objective.summed(replica, batch.to(device), dtype=training.dtype)
            (loss * weight).backward()
        total += loss.detach()
    return torch.stack([total, torch.full_like(total, own)]), asked
