"""Published tasks for language models (HellaSwag, LAMBADA, PIQA), and perplexity on a text."""

from __future__ import annotations

import json
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from suffice.data.files import cache, locate
from suffice.errors import ConfigError, DataError, unknown
from suffice.models import LM
from suffice.text import CORPORA, TokenFile, Tokenizer, corpus
from suffice.text.documents import open_file
from suffice.train.language import amount

Step = Callable[[int, int], None]
"""Receives the number of finished texts or windows, and of all."""

FILES = {
    "hellaswag": "eval/hellaswag/hellaswag_val.jsonl.xz",
    "lambada": "eval/lambada_openai/lambada_openai.jsonl.xz",
    "piqa": "eval/piqa/piqa.jsonl.xz",
}
TASKS = tuple(FILES)
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What an item of another form raises."""
WINDOWS = 16  # computed at once
MAX_BYTES = 1 << 26  # bytes of the items of a task; the largest has a fifth
LARGEST_EXPONENT = 700.0  # whose power of e is a float

DESCRIPTIONS = {
    "acc": "highest probability of the ending; acc of lm-evaluation-harness",
    "acc_norm": "highest log-probability per character; acc_norm of lm-evaluation-harness",
    "sum": "lowest summed loss of the ending; build-nanogpt's acc, which reads the text as it "
    "stands",
    "average": "lowest loss per token of the ending; build-nanogpt's acc_norm",
}


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


def evaluate_task(
    lm: LM,
    tokenizer: Tokenizer,
    task: str,
    *,
    data: str | None = None,
    limit: int | None = None,
    step: Step = lambda _done, _total: None,
) -> Evaluation:
    """Return the scores of a language model on a task.

    Args:
        lm: language model in evaluation mode, on its device.
        tokenizer: tokenizer of the model.
        task: "hellaswag", "lambada" or "piqa".
        data: file of the items; None finds it below $SUFFICE_DATA or in the cache.
        limit: number of items to read from the start; None reads all.
        step: function called with the number of finished texts, and of all.
    """
    if task not in TASKS:
        raise unknown("task", task, (*TASKS, "perplexity"))
    _check_limit(limit)
    path = _find(task) if data is None else Path(data)
    items = read_items(path, PARSERS[task])
    used = items[:limit]
    score = _score_last_words if task == "lambada" else _score_choices
    scores = score(lm, tokenizer, used, step)
    return Evaluation(task=task, items=len(used), of=len(items), source=str(path), scores=scores)


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


# Scores.


def _score_choices(
    lm: LM, tokenizer: Tokenizer, items: Sequence[Item], step: Step
) -> tuple[Score, ...]:
    worded = [
        encode_joined(tokenizer, item.context, f" {ending}")
        for item in items
        for ending in item.endings
    ]
    plain = [
        encode_apart(tokenizer, item.plain_context, f" {ending}")
        for item in items
        for ending in item.plain_endings
    ]
    total = len(worded) + len(plain)
    results = continuation_losses(lm, worded, step=lambda done: step(done, total))
    letters = [len(ending) for item in items for ending in item.endings]
    values = {
        "acc": [result.loss for result in results],
        "acc_norm": [result.loss / n for result, n in zip(results, letters, strict=True)],
    }
    if plain:
        results = continuation_losses(lm, plain, step=lambda done: step(len(worded) + done, total))
        values["sum"] = [result.loss for result in results]
        values["average"] = [result.loss / result.tokens for result in results]
    return tuple(
        _mean(name, _hits(of_endings, items), DESCRIPTIONS[name])
        for name, of_endings in values.items()
    )


def _hits(values: Sequence[float], items: Sequence[Item]) -> list[float]:
    remaining, hits = iter(values), []
    for item in items:
        of_item = list(islice(remaining, len(item.endings)))
        hits.append(float(of_item.index(min(of_item)) == item.right))
    return hits


def _score_last_words(
    lm: LM, tokenizer: Tokenizer, items: Sequence[Item], step: Step
) -> tuple[Score, ...]:
    pairs = [encode_joined(tokenizer, item.context, f" {item.endings[0]}") for item in items]
    results = continuation_losses(lm, pairs, step=lambda done: step(done, len(pairs)))
    loss = _mean("loss", [result.loss for result in results], "")
    return (
        _mean(
            "acc",
            [float(result.greedy) for result in results],
            "the last word is the most likely text",
        ),
        _exponential(
            "perplexity",
            loss.value,
            loss.standard_error,
            "e to the mean loss of the last word; perplexity of lm-evaluation-harness",
        ),
    )


def _mean(name: str, values: Sequence[float], description: str) -> Score:
    return Score(
        name=name,
        value=statistics.fmean(values),
        standard_error=_standard_error(values),
        description=description,
    )


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _exponential(name: str, exponent: float, error: float | None, description: str) -> Score:
    value = math.exp(min(exponent, LARGEST_EXPONENT))
    error = None if error is None else value * error
    return Score(name=name, value=value, standard_error=error, description=description)


# Losses of continuations.

Pair = tuple[list[int], list[int]]
"""Token ids of a context and of its continuation."""


@dataclass(frozen=True, kw_only=True)
class ContinuationLoss:
    """The loss of a model on a continuation."""

    loss: float  # loss summed over the tokens, nats
    tokens: int  # number of tokens
    greedy: bool  # whether each token was the most likely one


def encode_apart(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two separately, as build-nanogpt does."""
    return _not_empty(tokenizer.encode(context), tokenizer.encode(continuation), continuation)


def encode_joined(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two as one text, cut after the tokens of the context, as lm-evaluation-harness."""
    tokens = tokenizer.encode(context + continuation)
    cut = len(tokenizer.encode(context))
    return _not_empty(tokens[:cut], tokens[cut:], continuation)


def _not_empty(context: list[int], continuation: list[int], text: str) -> Pair:
    if not context or not continuation:
        raise DataError(
            f"the tokenizer leaves nothing of a context, or of its continuation {text!r:.60}; give "
            "items with text in both."
        )
    return context, continuation


def continuation_losses(
    lm: LM,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 32,
    step: Callable[[int], None] = lambda _: None,
) -> list[ContinuationLoss]:
    """Return the loss of each continuation after its context.

    Pairs of similar length are computed together. Texts longer than the model's rows lose their
    beginning.
    """
    results: dict[int, ContinuationLoss] = {}
    order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            batch = _batch_losses(lm, [pairs[number] for number in numbers])
            results.update(zip(numbers, batch, strict=True))
            step(min(start + batch_size, len(order)))
    return [results[number] for number in range(len(pairs))]


def _batch_losses(lm: LM, pairs: Sequence[Pair]) -> list[ContinuationLoss]:
    rows = [(context + continuation)[-(lm.config.length + 1) :] for context, continuation in pairs]
    length = max(map(len, rows)) - 1
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    valid = torch.zeros(len(rows), length, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row) - 1] = torch.tensor(row[:-1])
        valid[number, : len(row) - 1] = True
    mask = None if bool(valid.all()) else valid.to(lm.device)
    logits = lm(tokens.to(lm.device), valid=mask)
    results = []
    for number, (row, (_, continuation)) in enumerate(zip(rows, pairs, strict=True)):
        end = len(row) - 1
        count = min(len(continuation), end)
        predicted = logits[number, end - count : end].float()
        targets = torch.tensor(row[-count:], device=lm.device)
        results.append(
            ContinuationLoss(
                loss=float(F.cross_entropy(predicted, targets, reduction="sum")),
                tokens=count,
                greedy=bool((predicted.argmax(dim=-1) == targets).all()),
            )
        )
    return results


# Items.


@dataclass(frozen=True, kw_only=True)
class Item:
    """A text with several endings, one of them right; of LAMBADA, with its last word alone."""

    context: str
    endings: tuple[str, ...]
    right: int = 0
    plain_context: str = ""
    plain_endings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        texts = all(isinstance(ending, str) and ending for ending in self.endings)
        if not self.context or not texts or not 0 <= self.right < len(self.endings):
            raise ValueError(f"answer {self.right} of {len(self.endings)} endings")


def parse_hellaswag(row: dict[str, Any]) -> Item:
    """Return an item of HellaSwag: as published, or with its text cleaned beforehand.

    The cleaned form has "Activity: context" in ctx and no bracketed tags; build-nanogpt reads the
    context without the activity.
    """
    endings = tuple(row["endings"])
    if "activity_label" in row:
        plain = row["ctx"]
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        context = clean_hellaswag(context)
    else:
        plain, context = row["ctx"].partition(": ")[2] or row["ctx"], row["ctx"]
    return Item(
        context=context,
        endings=tuple(map(clean_hellaswag, endings)),
        right=int(row["label"]),
        plain_context=plain,
        plain_endings=endings,
    )


def clean_hellaswag(text: str) -> str:
    """Return a text as lm-evaluation-harness reads HellaSwag's.

    Example:
        >>> clean_hellaswag(" Cut [header] the [title] grass  short. ")
        'Cut the. grass short.'
    """
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def parse_piqa(row: dict[str, Any]) -> Item:
    """Return an item of PIQA: as published with its label, or with query, choices and gold."""
    if "goal" in row:
        context, endings = f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"])
        right = row["label"]
    else:
        context, endings = f"{row['query'].rstrip()}\nAnswer:", tuple(row["choices"])
        right = row["gold"]
    return Item(context=context, endings=endings, right=int(right))


def parse_lambada(row: dict[str, Any]) -> Item:
    """Return an item of LAMBADA: a text whose last word is the target, or both separately."""
    if "text" in row:
        context, _, word = row["text"].rpartition(" ")
    else:
        context, word = row["context"].rstrip(), row["continuation"].strip()
    return Item(context=context, endings=(word,))


PARSERS = {"hellaswag": parse_hellaswag, "lambada": parse_lambada, "piqa": parse_piqa}


def read_items(path: Path, parse: Callable[[dict[str, Any]], Item]) -> list[Item]:
    """Return the items of a file, one JSON object a line, .xz decompressed."""
    with open_file(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataError(f"{path} holds more than {MAX_BYTES >> 20} MiB; give the task's own file.")
    lines = [line for line in content.split(b"\n") if line.strip()]
    del content
    items = []
    for number, line in enumerate(lines, 1):
        try:
            items.append(parse(json.loads(line)))
        except MALFORMED as error:
            raise DataError(
                f"{path}, line {number:,}, is not an item of this task ({type(error).__name__}: "
                f"{error!s:.100}); give the task's own file."
            ) from error
    if not items:
        raise DataError(f"{path} holds no item; give the task's own file.")
    return items


def _find(task: str) -> Path:
    path = locate(FILES[task])
    if path is None:
        raise DataError(
            f"the items of {task} are not on this machine; put them at {cache() / FILES[task]}, "
            "below $SUFFICE_DATA, or name their file (.jsonl or .jsonl.xz) by --data."
        )
    return path
