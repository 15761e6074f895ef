"""Quantisation reports: schemes of layers, divergence and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import DataError
from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class QuantisedLayer:
    """One map of a quantised model."""

    name: str  # name of its module
    scheme: str  # storage format of its weights; the original dtype if skipped
    kernel: str  # kernel that multiplies on this machine; "" if skipped
    bytes_before: int  # bytes of its weights before
    bytes_after: int  # bytes of its weights now
    # root mean square of the change of its outputs over that of the outputs, from rounded weights
    # alone; for inputs of the calibration text, or without one for uncorrelated inputs. None if
    # skipped.
    error: float | None
    skipped: str = ""  # why it was left alone; "" if packed


@dataclass(frozen=True, kw_only=True)
class PredictionChange:
    """Change of the model's predictions on a text."""

    tokens: int  # predicted ones
    # mean Kullback-Leibler divergence of the distribution now from the one before, nats per token
    divergence: float
    perplexity_before: float  # perplexity on the text before
    perplexity_after: float  # perplexity on the text after

    @property
    def increase(self) -> float:
        """The perplexity's growth, 0.01 for one percent."""
        return self.perplexity_after / self.perplexity_before - 1.0


@dataclass(frozen=True, kw_only=True)
class QuantisationReport:
    """The result of quantising a model."""

    bits: int  # bits of packed weights
    layers: tuple[QuantisedLayer, ...]  # the maps, packed and skipped
    bytes_before: int  # bytes of all weights of the model before
    bytes_after: int  # bytes of all weights of the model now
    calibration_tokens: int = 0  # number of calibration tokens; 0 if only the weights were used
    change: PredictionChange | None = None  # change of the predictions; None without text

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


ROWS = 8  # of text, computed at once


@torch.no_grad()
def measure_change(
    lm: LM, packed: Mapping[str, nn.Module], tokens: Tensor, step: Callable[[int, int], None]
) -> PredictionChange:
    """Return how predictions of tokens [B, T] change with the named modules replaced meanwhile."""
    original = {name: lm.get_submodule(name) for name in packed}
    before = after = divergence = 0.0
    for done, rows in enumerate(tokens.to(lm.device).split(ROWS)):
        inputs, targets = rows[:, :-1], rows[:, 1:].flatten()
        old = _log_probabilities(lm, inputs)
        try:
            _set_modules(lm, packed)
            new = _log_probabilities(lm, inputs)
        finally:
            _set_modules(lm, original)
        before += float(F.nll_loss(old, targets, reduction="sum"))
        after += float(F.nll_loss(new, targets, reduction="sum"))
        divergence += float(F.kl_div(new, old, reduction="sum", log_target=True))
        step(min((done + 1) * ROWS, len(tokens)), len(tokens))
    count = tokens[:, 1:].numel()
    return PredictionChange(
        tokens=count,
        divergence=divergence / count,
        perplexity_before=math.exp(min(before / count, 700.0)),
        perplexity_after=math.exp(min(after / count, 700.0)),
    )


def _log_probabilities(lm: LM, tokens: Tensor) -> Tensor:
    return lm(tokens).double().log_softmax(dim=-1).flatten(0, 1)


def _set_modules(lm: LM, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        replace_module(lm, name, module)


def rows_of(documents: Iterable[str], tokenizer: Tokenizer, *, length: int, tokens: int) -> Tensor:
    """Return the first tokens of documents, each between begin and end: int64 [B, T].

    A row has `length` tokens (a shorter text gives one shorter row), all rows about `tokens`.
    """
    begin, end = ([] if t is None else [t] for t in (tokenizer.begin, tokenizer.end))
    ids: list[int] = []
    for document in documents:
        ids += [*begin, *tokenizer.encode(document), *end]
        if len(ids) >= max(tokens, length):
            break
    if len(ids) < 2:  # noqa: PLR2004
        raise DataError(f"the text holds {len(ids)} tokens; give a longer one.")
    length = min(length, len(ids))
    rows = max(min(tokens, len(ids)) // length, 1)
    return torch.tensor(ids[: rows * length]).view(rows, length)
