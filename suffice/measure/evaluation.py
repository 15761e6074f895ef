"""Perplexity of a language model on a text."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from suffice.errors import ConfigError
from suffice.models import LM
from suffice.text import CORPORA, TokenFile, Tokenizer, corpus
from suffice.train.language import amount

Step = Callable[[int, int], None]
"""Receives the number of finished texts or windows, and of all."""

WINDOWS = 16  # computed at once
LARGEST_EXPONENT = 700.0  # whose power of e is a float


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of an evaluation."""

    name: str  # name of the scorer
    value: float  # a share from 0 to 1, or what the name says
    # standard error of the value over the items; None for a single item
    standard_error: float | None
    description: str  # formula of the value, in one line


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a model on a task."""

    task: str  # name of the task
    items: int  # number of evaluated items
    of: int  # number of items in the source
    source: str  # file or corpus of the items
    scores: tuple[Score, ...]  # scores of the model

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as plain data."""
        data = asdict(self)
        for score in data["scores"]:
            score["told"] = score.pop("description")
        return data


def perplexity(
    lm: LM,
    tokenizer: Tokenizer,
    *,
    data: str,
    limit: int | None = None,
    step: Step = lambda _done, _total: None,
) -> Evaluation:
    """Return the loss of a language model on a text, its perplexity, and bits per unit of text.

    The text is read in windows of the model's length that overlap by one token; each token but the
    first is predicted once. The standard error is over windows.

    Args:
        lm: language model in evaluation mode, on its device.
        tokenizer: tokenizer of the model.
        data: name of a corpus, of which the test part is read, or else the validation part; or the
            path of a text, all of which is read.
        limit: number of windows to read from the start; None reads all.
        step: function called with the number of finished windows, and of all.
    """
    _check_limit(limit)
    source = corpus(data)
    if source.name in CORPORA:
        text = source.validation if source.test is None else source.test
    else:
        text = chain(source.train, source.validation)
    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile.write(Path(folder) / "tokens.bin", text, tokenizer)
        size = amount(file, tokenizer)
        of = math.ceil((len(file) - 1) / lm.config.length)
        total = min(of, limit or of)
        losses, counts = _window_losses(lm, file, total, step)
    loss = sum(losses) / sum(counts)
    error = _standard_error([each / n for each, n in zip(losses, counts, strict=True)])
    scores = (
        Score(name="loss", value=loss, standard_error=error, description="nats per token"),
        _exponential("perplexity", loss, error, "e to the loss"),
        *(
            Score(
                name=name,
                value=value,
                standard_error=None,
                description="of the text that is encoded",
            )
            for name, value in size.bits(loss).items()
        ),
    )
    return Evaluation(task="perplexity", items=total, of=of, source=source.source, scores=scores)


def _window_losses(
    lm: LM, file: TokenFile, limit: int, step: Step
) -> tuple[list[float], list[int]]:
    losses: list[float] = []
    counts: list[int] = []
    windows = file.windows(lm.config.length, WINDOWS)
    with torch.inference_mode():
        for batch in islice(windows, math.ceil(limit / WINDOWS) + 1):
            rows = batch[: limit - len(losses)].to(lm.device)
            if not len(rows):
                break
            logits = lm(rows[:, :-1]).float()
            loss = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
            losses += loss.sum(dim=1).tolist()
            counts += [loss.shape[1]] * len(rows)
            step(len(losses), limit)
    return losses, counts


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}; give at least 1 item, or none for all.")


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _exponential(name: str, exponent: float, error: float | None, description: str) -> Score:
    value = math.exp(min(exponent, LARGEST_EXPONENT))
    error = None if error is None else value * error
    return Score(name=name, value=value, standard_error=error, description=description)
