"""How well a language model predicts a text."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import torch
from torch.nn import functional as F

from suffice.measure.evaluation.evaluate import check_limit
from suffice.measure.evaluation.result import Evaluation, Score
from suffice.models import LM
from suffice.text import CORPORA, Corpus, Documents, TokenFile, Tokenizer, corpus
from suffice.train.language import amount

TOGETHER = 16  # windows computed at once


def perplexity(
    lm: LM,
    tokenizer: Tokenizer,
    *,
    data: str,
    limit: int | None = None,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Return the loss of a language model on a text, its perplexity, and bits per unit of text.

    The text is read in windows of the model's length that overlap by one token; each token but the
    first is predicted once. The standard error is over windows.

    Args:
        lm: in evaluation, where it is to be computed.
        tokenizer: of its tokens.
        data: a corpus by name, of which the test part is read, or else the validation part; or the
            path of a text, all of which is read.
        limit: the first so many windows; None = all.
        step: told how many windows of how many are done.

    Raises:
        ConfigError: for an unknown corpus, or a limit below 1.
        DataError: if the text is absent, or the tokenizer cannot encode it.
    """
    check_limit(limit)
    found = corpus(data)
    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile.write(Path(folder) / "tokens.bin", _part(found), tokenizer)
        size = amount(file, tokenizer)
        of = math.ceil((len(file) - 1) / lm.config.length)
        total = min(of, limit or of)
        losses, counts = _losses(lm, file, total, lambda done: step(done, total))
    means = [loss / count for loss, count in zip(losses, counts, strict=True)]
    whole = sum(losses) / sum(counts)
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    bits = size.bits(whole)
    scores = (
        Score(name="loss", value=whole, standard_error=error, told="nats per token"),
        Score(
            name="perplexity",
            value=math.exp(min(whole, 700.0)),
            standard_error=None if error is None else math.exp(min(whole, 700.0)) * error,
            told="e to the loss",
        ),
        *(
            Score(name=name, value=value, standard_error=None, told="of the text that is encoded")
            for name, value in bits.items()
        ),
    )
    return Evaluation(task="perplexity", items=total, of=of, source=found.source, scores=scores)


def _part(found: Corpus) -> Documents | chain[str]:
    if found.name in CORPORA:
        return found.validation if found.test is None else found.test
    return chain(found.train, found.validation)


def _losses(
    lm: LM, file: TokenFile, limit: int, step: Callable[[int], None]
) -> tuple[list[float], list[int]]:
    """Return the summed loss and the targets of each of the first windows."""
    device = lm.device
    losses: list[float] = []
    counts: list[int] = []
    windows = file.windows(lm.config.length, TOGETHER)
    with torch.inference_mode():
        for batch in islice(windows, math.ceil(limit / TOGETHER) + 1):
            rows = batch[: limit - len(losses)].to(device)
            if not len(rows):
                break
            logits = lm(rows[:, :-1]).float()
            found = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
            losses += found.sum(dim=1).tolist()
            counts += [found.shape[1]] * len(rows)
            step(len(losses))
    return losses, counts
