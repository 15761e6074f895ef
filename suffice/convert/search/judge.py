"""How far a model with other attention layers is from the model as it is, row by row.

Letters: B rows, T tokens, M d_model, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.layers import Attention
from suffice.models import LM

KEPT = 1 << 28  # numbers of the model as it is that are kept, not computed again


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What replacing layers changed, for each row of text.

    Args:
        divergence: of the other model's predictions from those of the model as it is, nats per
            token.
        loss: of the other model, nats per token.
    """

    divergence: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class _Reference:
    """What the model as it is gives for some rows: inputs of its blocks, and predictions."""

    inputs: list[Tensor]
    logs: Tensor  # probabilities' logarithms, float64
    targets: Tensor


class Judge:
    """A language model and text to hold others against it.

    Args:
        lm: the model as it is, in evaluation.
        batches: rows of tokens [B, T]; every token but a row's first is predicted.
    """

    def __init__(self, lm: LM, batches: Sequence[Tensor]) -> None:
        self.lm = lm
        self.names = [f"blocks.{number}.attention" for number in range(len(lm.blocks))]
        self.batches = [rows.to(lm.device) for rows in batches]
        self.tokens = sum(rows[:, 1:].numel() for rows in batches)
        numbers = lm.config.vocabulary_size + lm.config.d_model * len(lm.blocks)
        few = self.tokens * numbers <= KEPT
        self.kept = [self._reference(rows) for rows in self.batches] if few else None

    @torch.inference_mode()
    def rows(self, layers: Mapping[str, Attention]) -> Rows:
        """Return how far the model is with some layers replaced.

        Args:
            layers: by the names of those they replace.
        """
        divergence, loss = [], []
        at = [number for number, name in enumerate(self.names) if name in layers]
        first = min(at, default=len(self.names))
        blocks = [
            _with(block, layers[name]) if name in layers else block
            for block, name in zip(self.lm.blocks, self.names, strict=True)
        ]
        for reference in self._references():
            logs = reference.logs
            if at:
                x = reference.inputs[first]
                for block in blocks[first:]:
                    x = block(x)
                logs = self._logs(x)
            far, lost = _compared(reference, logs)
            divergence += far
            loss += lost
        return Rows(divergence=tuple(divergence), loss=tuple(loss))

    @torch.inference_mode()
    def rows_of(self, lm: LM) -> Rows:
        """Return how far another model is that reads the same tokens.

        Args:
            lm: in evaluation.
        """
        divergence, loss = [], []
        for reference, rows in zip(self._references(), self.batches, strict=True):
            far, lost = _compared(reference, _logs(lm(rows[:, :-1])))
            divergence += far
            loss += lost
        return Rows(divergence=tuple(divergence), loss=tuple(loss))

    def _references(self) -> Iterator[_Reference]:
        if self.kept is not None:
            yield from self.kept
        else:
            yield from map(self._reference, self.batches)

    @torch.inference_mode()
    def _reference(self, rows: Tensor) -> _Reference:
        inputs, x = [], self.lm.embedding(rows[:, :-1])
        for block in self.lm.blocks:
            inputs.append(x)
            x = block(x)
        return _Reference(inputs, self._logs(x), rows[:, 1:])

    def _logs(self, x: Tensor) -> Tensor:
        return _logs(self.lm.logits(self.lm.norm(x)))


def _with(block: nn.Module, attention: Attention) -> nn.Module:
    """Return a block that is the same but for its attention."""
    other = copy.copy(block)
    other._modules = {**block._modules, "attention": attention}
    return other


def _logs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(dim=-1)


def _compared(reference: _Reference, logs: Tensor) -> tuple[list[float], list[float]]:
    """Return divergence and loss of each row."""
    was, loss = reference.logs, -logs.gather(2, reference.targets[..., None])
    far = (was.exp() * (was - logs)).sum(dim=-1)
    return far.mean(dim=1).tolist(), loss.mean(dim=(1, 2)).tolist()
