"""Evaluation: loss and accuracy of a model on a split."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.data.dataset import IGNORE_INDEX, Dataset, Split
from suffice.errors import ConfigError, DataError
from suffice.train.distributed import current, resolve_device
from suffice.utils.torch_compat import check


def flatten_answers(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [A, C], in float32 at least, and labels [A], ignored ones included."""
    check(
        "logits",
        logits,
        (*labels.shape, None),
        hint="Labels are per row or per token; the model's logits must have the same layout.",
    )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.flatten(0, labels.dim() - 1), labels.flatten()


def cross_entropy(
    logits: Tensor, labels: Tensor, *, reduction: str, label_smoothing: float = 0.0
) -> Tensor:
    """Return cross-entropies of flattened answers, 0 where the label is ignored."""
    return F.cross_entropy(
        logits,
        labels,
        reduction=reduction,
        label_smoothing=label_smoothing,
        ignore_index=IGNORE_INDEX,
    )


class ModelInputs(NamedTuple):
    """The tensors a model is called with."""

    inputs: Tensor  # images [B, C, H, W] or tokens [B, T]
    valid: Tensor | None = None  # bool [B, T], of tokens
    source: Tensor | None = None  # tokens [B, S] of the text to translate
    source_valid: Tensor | None = None  # bool [B, S]

    @classmethod
    def of(cls, split: Split) -> ModelInputs:
        """Return all rows of a split."""
        return cls(split.inputs, split.valid, split.source, split.source_valid)

    def map(self, function: Callable[[Tensor], Tensor]) -> ModelInputs:
        """Return the inputs with a function applied to every tensor."""
        return ModelInputs._make(None if tensor is None else function(tensor) for tensor in self)

    def logits(self, model: nn.Module) -> Tensor:
        """Return the logits of a model: [B, C], or [B, T, C] where each token has a label."""
        if self.source is None:
            return model(self.inputs, valid=self.valid)
        return model(self.source, self.inputs, self.source_valid, self.valid)


@dataclass(frozen=True, kw_only=True)
class EvaluationScore:
    """Loss and metrics of a model on a split."""

    loss: float  # mean cross-entropy over the labels, in nats, without label smoothing
    accuracy: float  # share of labels that have the largest logit, 0 to 1
    # share of labels that have one of the five largest logits; None when the task has five classes
    # or fewer
    top5: float | None
    count: int  # labels, not counting ignored ones


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: Split,
    *,
    batch_size: int = 512,
    device: str = "cpu",
) -> EvaluationScore:
    """Return the score of a model on every row of a split, shared between the processes.

    Moves the model to the device. Its training flags are the same afterwards; sums are in float64,
    so neither the batch size nor the number of processes matters beyond rounding.
    """
    if len(split) == 0:
        raise DataError(f"a split of {dataset.name} has no rows; there is nothing to evaluate.")
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}; give an integer >= 1.")
    processes, place = current(), resolve_device(device)
    model.to(place)
    sums = torch.zeros(3, dtype=torch.float64, device=place)
    start, stop = processes.share(len(split))
    all_inputs = ModelInputs.of(split)
    with evaluating(model), torch.inference_mode():
        for at in range(start, stop, batch_size):
            rows = slice(at, min(at + batch_size, stop))
            inputs = all_inputs.map(lambda tensor, rows=rows: tensor[rows].to(place))
            inputs = inputs._replace(inputs=dataset.prepare(inputs.inputs))
            sums += _sums(inputs.logits(model), split.labels[rows].to(place))
    count = int(split.answers.sum())
    loss, top1, top5 = (processes.sum(sums) / count).tolist()
    return EvaluationScore(
        loss=loss, accuracy=top1, top5=top5 if dataset.num_classes > 5 else None, count=count
    )


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode for the block, and each back as it was."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sums of the losses, of top-1 and of top-5 hits of a batch, float64 [3]."""
    logits, labels = flatten_answers(logits, labels)
    losses = cross_entropy(logits, labels, reduction="none")
    hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return torch.stack([losses.double().sum(), hits[:, 0].sum().double(), hits.sum().double()])
