"""What a task is scored by besides loss and accuracy.

Letters: N rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.data import Dataset, Split
from suffice.data.translation_es import END
from suffice.data.vocabulary import PAD, START, UNKNOWN
from suffice.errors import ConfigError, unknown
from suffice.generate.translate import translate
from suffice.train import Score, current, resolve_device
from suffice.train.evaluate import evaluating
from suffice.train.reading import Reading

BATCH = 256  # rows
LARGEST = 700.0  # loss whose exponential is a float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model and what it did on the test split.

    Args:
        model: the model.
        dataset: its task.
        test: loss and accuracy on the test split.
        device: "cpu" or "cuda".
    """

    model: nn.Module
    dataset: Dataset
    test: Score
    device: str


Scored = tuple[float, str | None]
"""A score, and the line that says how it was worked out where such a line is usual."""


def scores_of(trained: Trained) -> tuple[dict[str, float], dict[str, str]]:
    """Return every score of the test split by name, and the signatures of those that have one.

    All processes must call it; each looks at its share of the rows, and all return the same.

    Raises:
        ConfigError: for an unknown score, or one whose library is absent.
    """
    values, signatures = {}, {}
    _refuse_unknown(trained.dataset)
    for name in trained.dataset.scores:
        values[name], signature = SCORES[name](trained)
        if signature is not None:
            signatures[name] = signature
    return values, signatures


def check_scores(dataset: Dataset) -> None:
    """Refuse a task whose scores cannot be had, before hours are spent on its training.

    Raises:
        ConfigError: for an unknown score, or if a library is absent.
    """
    _refuse_unknown(dataset)
    if "bleu" in dataset.scores:
        _sacrebleu()


def _refuse_unknown(dataset: Dataset) -> None:
    for name in dataset.scores:
        if name not in SCORES:
            raise unknown("score", name, SCORES)


def _balanced_accuracy(trained: Trained) -> Scored:
    """Return the share of each class of the test split that is found, averaged over the classes."""
    split, classes = trained.dataset.test, trained.dataset.num_classes
    sums = torch.zeros(2, classes, dtype=torch.float64)
    with evaluating(trained.model), torch.inference_mode():
        for rows in _share(split):
            reading = _reading(split, rows, trained.device)
            reading = reading._replace(inputs=trained.dataset.prepare(reading.inputs))
            labels = split.labels[rows]
            found = reading.answered(trained.model).argmax(dim=1).cpu() == labels
            sums[0] += labels[found].bincount(minlength=classes)
            sums[1] += labels.bincount(minlength=classes)
    right, there = current().sum(sums)
    return float((right / there)[there > 0].mean()), None


def _perplexity(trained: Trained) -> Scored:
    """Return e to the mean loss of an answer of the test split."""
    loss = trained.test.loss
    return math.exp(loss) if loss < LARGEST else math.inf, None


def _bleu(trained: Trained) -> Scored:
    """Return corpus BLEU, 0 to 100, of greedy translations of the test split.

    Both sides are words as the task cuts them, lower case and without punctuation, so the figure
    is not that of texts as they are written. Each row has one reference. A word that is not in the
    vocabulary is never right, also where the translation says that it does not know it.
    """
    metric = _sacrebleu()(tokenize="none", force=True)
    words = trained.dataset.vocabulary
    told = _translations(trained)
    asked = trained.dataset.test.labels.masked_fill(trained.dataset.test.labels < 0, PAD)
    hypotheses = [_text(row, words, unknown_as="<unknown>") for row in told.tolist()]
    references = [_text(row, words, unknown_as="<rare>") for row in asked.tolist()]
    found = metric.corpus_score(hypotheses, [references])
    return float(found.score), str(metric.get_signature())


def _translations(trained: Trained) -> Tensor:
    """Return greedy translations of the test split, ids [N, T], PAD behind each."""
    split, end = trained.dataset.test, trained.dataset.vocabulary.index(END)
    told = torch.full_like(split.inputs, PAD)
    for rows in _share(split):
        reading = _reading(split, rows, trained.device)
        made = translate(
            trained.model,
            reading.source,
            start=START,
            max_new_tokens=split.inputs.shape[1],
            stop=[end],
            pad=PAD,
            source_valid=reading.source_valid,
        )
        told[rows, : made.new.shape[1]] = made.new.cpu()
    return current().sum(told)


def _text(ids: list[int], words: tuple[str, ...], *, unknown_as: str) -> str:
    """Return the words of a translation up to its end."""
    told = [unknown_as if one == UNKNOWN else words[one] for one in ids if one != PAD]
    return " ".join(told[: told.index(END)] if END in told else told)


def _share(split: Split) -> list[slice]:
    """Return the rows of a split that this process looks at, in batches."""
    start, stop = current().share(len(split))
    return [slice(at, min(at + BATCH, stop)) for at in range(start, stop, BATCH)]


def _reading(split: Split, rows: slice, device: str) -> Reading:
    place = resolve_device(device)
    return Reading.of(split).each(lambda tensor: tensor[rows].to(place))


def _sacrebleu() -> Any:
    """Return the class that works out BLEU.

    Raises:
        ConfigError: if sacrebleu is absent.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the task is scored by BLEU, which sacrebleu works out, and that is not installed; "
            "pip install 'suffice[translation]'."
        ) from error
    return BLEU


SCORES: dict[str, Callable[[Trained], Scored]] = {
    "balanced_accuracy": _balanced_accuracy,
    "perplexity": _perplexity,
    "bleu": _bleu,
}
