"""Published tasks for language models: HellaSwag, LAMBADA and PIQA."""

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
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from suffice.data.files import cache, locate
from suffice.errors import ConfigError, DataError, unknown
from suffice.models import LM
from suffice.text import CORPORA, Corpus, Documents, TokenFile, Tokenizer, corpus
from suffice.text.documents import opened
from suffice.train.language import amount

T = TypeVar("T")

PLACES = {
    "hellaswag": "eval/hellaswag/hellaswag_val.jsonl.xz",
    "lambada": "eval/lambada_openai/lambada_openai.jsonl.xz",
    "piqa": "eval/piqa/piqa.jsonl.xz",
}
BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with several endings, one of them right.

    Args:
        plain: the text before the ending as it stands.
        clean: the same as lm-evaluation-harness words it.
        endings: to choose from, without the space before them.
        clean_endings: the same as lm-evaluation-harness words them.
        right: index of the right one.
    """

    plain: str
    clean: str
    endings: tuple[str, ...]
    clean_endings: tuple[str, ...]
    right: int


@dataclass(frozen=True, kw_only=True)
class Word:
    """A text and the word that ends it.

    Args:
        context: the text, without the space before the word.
        word: to be predicted.
    """

    context: str
    word: str


def find(task: str, data: str | None) -> Path:
    """Return where a task's items are.

    Raises:
        DataError: if they are nowhere.
    """
    if data is not None:
        return Path(data)
    found = locate(PLACES[task])
    if found is None:
        raise DataError(
            f"the items of {task} are not on this machine; put them at {cache() / PLACES[task]}, "
            "below $SUFFICE_DATA, or name their file (.jsonl or .jsonl.xz) by --data."
        )
    return found


def read(path: Path, item: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the items of a file, one JSON object a line, .xz decompressed.

    Raises:
        DataError: naming the line that is no item.
    """
    with opened(path) as file:
        lines = [line for line in file.read().split(b"\n") if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(item(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number:,}, is no item of this task ({type(error).__name__}: "
                f"{error!s:.100}); give the task's own file."
            ) from error
    if not found:
        raise DataError(f"{path} holds no item; give the task's own file.")
    return found


def hellaswag(row: dict[str, Any]) -> Choice:
    """Return an item of HellaSwag: as published, or with its text cleaned beforehand.

    The cleaned form has "Activity: context" in ctx and no bracketed tags; build-nanogpt reads the
    context without the activity.
    """
    endings = tuple(row["endings"])
    if "activity_label" in row:
        said = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        plain, clean = row["ctx"], cleaned(said)
    else:
        plain, clean = row["ctx"].partition(": ")[2] or row["ctx"], row["ctx"]
    return Choice(
        plain=plain,
        clean=clean,
        endings=endings,
        clean_endings=tuple(map(cleaned, endings)),
        right=_index(int(row["label"]), endings),
    )


def piqa(row: dict[str, Any]) -> Choice:
    """Return an item of PIQA: as published with its label, or with query, choices and gold."""
    if "goal" in row:
        clean, endings = f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"])
        right = row["label"]
    else:
        clean = f"{row['query'].rstrip()}\nAnswer:"
        endings, right = tuple(row["choices"]), row["gold"]
    return Choice(
        plain=clean,
        clean=clean,
        endings=endings,
        clean_endings=endings,
        right=_index(int(right), endings),
    )


def lambada(row: dict[str, Any]) -> Word:
    """Return an item of LAMBADA: a text whose last word is asked for, or the two apart."""
    if "text" in row:
        context, _, word = row["text"].rpartition(" ")
    else:
        context, word = row["context"].rstrip(), row["continuation"].strip()
    if not context or not word:
        raise ValueError("an empty context or word")
    return Word(context=context, word=word)


def cleaned(text: str) -> str:
    """Return a text as lm-evaluation-harness reads HellaSwag's.

    Example:
        >>> cleaned(" Cut [header] the [title] grass  short. ")
        'Cut the. grass short.'
    """
    text = text.strip().replace(" [title]", ". ")
    return BRACKETS.sub("", text).replace("  ", " ")


def _index(right: int, endings: tuple[str, ...]) -> int:
    if not 0 <= right < len(endings) or not all(isinstance(one, str) and one for one in endings):
        raise ValueError(f"answer {right} of {len(endings)} endings")
    return right


Pair = tuple[list[int], list[int]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a model gives a continuation.

    Args:
        loss: summed over its tokens, nats.
        tokens: how many it has.
        greedy: whether each of them was the most likely one.
    """

    loss: float
    tokens: int
    greedy: bool


def apart(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two for themselves, as build-nanogpt does."""
    return _some(tokenizer.encode(context), tokenizer.encode(continuation), continuation)


def joined(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Encode the two as one text, cut after the tokens of the context, as lm-evaluation-harness."""
    whole = tokenizer.encode(context + continuation)
    cut = len(tokenizer.encode(context))
    return _some(whole[:cut], whole[cut:], continuation)


def losses(
    lm: LM,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 32,
    step: Callable[[int], None] = lambda _: None,
) -> list[Found]:
    """Return what a model gives each continuation.

    Pairs of like length are computed together. What is longer than the model's rows loses its
    beginning.

    Args:
        lm: in evaluation.
        pairs: (context, continuation), token ids.
        batch_size: pairs at once.
        step: told how many pairs are done.
    """
    found: list[Found | None] = [None] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            for number, one in zip(chosen, _batch(lm, [pairs[n] for n in chosen]), strict=True):
                found[number] = one
            step(min(start + batch_size, len(order)))
    return [one for one in found if one is not None]


def _batch(lm: LM, pairs: Sequence[Pair]) -> list[Found]:
    device = lm.device
    rows = [(context + asked)[-(lm.config.length + 1) :] for context, asked in pairs]
    length = max(map(len, rows)) - 1
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    valid = torch.zeros(len(rows), length, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row) - 1] = torch.tensor(row[:-1])
        valid[number, : len(row) - 1] = True
    logits = lm(tokens.to(device), valid=None if bool(valid.all()) else valid.to(device))
    found = []
    for number, (row, (_, asked)) in enumerate(zip(rows, pairs, strict=True)):
        count = min(len(asked), len(row) - 1)
        own = logits[number, len(row) - 1 - count : len(row) - 1].float()
        targets = torch.tensor(row[-count:], device=device)
        found.append(
            Found(
                loss=float(F.cross_entropy(own, targets, reduction="sum")),
                tokens=count,
                greedy=bool((own.argmax(dim=-1) == targets).all()),
            )
        )
    return found


def _some(context: list[int], asked: list[int], text: str) -> Pair:
    if not context or not asked:
        raise DataError(
            f"the tokenizer leaves nothing of a context, or of its continuation {text!r:.60}; give "
            "items with text in both."
        )
    return context, asked


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of an evaluation.

    Args:
        name: of the scorer.
        value: a share from 0 to 1, or what the name says.
        standard_error: of the value over the items; None where it has none.
        told: what is computed, in a line.
    """

    name: str
    value: float
    standard_error: float | None
    told: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured on what.

    Args:
        task: its name.
        items: how many entered the scores.
        of: how many there are.
        source: where they come from.
        scores: the figures.
    """

    task: str
    items: int
    of: int
    source: str
    scores: tuple[Score, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as plain data."""
        return asdict(self)


def mean(name: str, values: Sequence[float], told: str) -> Score:
    """Return the mean of a value of each item, and the standard error of that mean.

    Example:
        >>> score = mean("accuracy", [1.0, 0.0, 1.0, 1.0], "share of right answers")
        >>> score.value, score.standard_error
        (0.75, 0.25)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Score(name=name, value=statistics.fmean(values), standard_error=error, told=told)


def exponential(name: str, values: Sequence[float], told: str) -> Score:
    """Return e to the mean of a value of each item; its error is carried along to first order."""
    inner = mean(name, values, told)
    value = math.exp(min(inner.value, 700.0))  # of floats
    error = None if inner.standard_error is None else value * inner.standard_error
    return Score(name=name, value=value, standard_error=error, told=told)


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


TASKS = ("hellaswag", "lambada", "piqa")
SUM = "lowest summed loss of the ending; build-nanogpt's acc, which reads the text as it stands"
AVERAGE = "lowest loss per token of the ending; build-nanogpt's acc_norm"
ACC = "highest probability of the ending; acc of lm-evaluation-harness"
ACC_NORM = "highest log-probability per character; acc_norm of lm-evaluation-harness"

Step = Callable[[int, int], None]


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
        lm: in evaluation, where it is to be computed.
        tokenizer: of its tokens.
        task: "hellaswag", "lambada" or "piqa".
        data: file of the items; None finds it below $SUFFICE_DATA or in the cache.
        limit: the first so many items; None = all.
        step: told how many texts of how many are done.

    Raises:
        ConfigError: for an unknown task, or a limit below 1.
        DataError: if the items are absent or damaged, or the tokenizer cannot encode one.
    """
    if task not in TASKS:
        raise unknown("task", task, (*TASKS, "perplexity"))
    check_limit(limit)
    path = find(task, data)
    if task == "lambada":
        every = read(path, lambada)
        scores = _lambada(lm, tokenizer, every[:limit], step)
    else:
        every = read(path, hellaswag if task == "hellaswag" else piqa)
        scores = _choices(lm, tokenizer, every[:limit], step, both=task == "hellaswag")
    used = len(every[:limit])
    return Evaluation(task=task, items=used, of=len(every), source=str(path), scores=scores)


def check_limit(limit: int | None) -> None:
    """Refuse a number of items below 1.

    Raises:
        ConfigError: telling what is legal.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}; give at least 1 item, or none for all.")


def _choices(
    lm: LM, tokenizer: Tokenizer, every: Sequence[Choice], step: Step, *, both: bool
) -> tuple[Score, ...]:
    counts = [len(one.endings) for one in every]
    right = [one.right for one in every]
    harness = [
        joined(tokenizer, one.clean, f" {ending}") for one in every for ending in one.clean_endings
    ]
    plain = [
        apart(tokenizer, one.plain, f" {ending}") for one in every for ending in one.endings if both
    ]
    total = len(harness) + len(plain)
    found = losses(lm, harness, step=lambda done: step(done, total))
    letters = [len(ending) for one in every for ending in one.clean_endings]
    per_letter = [f.loss / n for f, n in zip(found, letters, strict=True)]
    scores = [
        mean("acc", _hits([f.loss for f in found], counts, right), ACC),
        mean("acc_norm", _hits(per_letter, counts, right), ACC_NORM),
    ]
    if both:
        given = losses(lm, plain, step=lambda done: step(len(harness) + done, total))
        scores += [
            mean("sum", _hits([f.loss for f in given], counts, right), SUM),
            mean("average", _hits([f.loss / f.tokens for f in given], counts, right), AVERAGE),
        ]
    return tuple(scores)


def _hits(values: Sequence[float], counts: Sequence[int], right: Sequence[int]) -> list[float]:
    """Return 1 for each item whose right ending has the lowest value, else 0."""
    hits, start = [], 0
    for count, answer in zip(counts, right, strict=True):
        own = values[start : start + count]
        hits.append(float(own.index(min(own)) == answer))
        start += count
    return hits


def _lambada(lm: LM, tokenizer: Tokenizer, every: Sequence[Word], step: Step) -> tuple[Score, ...]:
    pairs = [joined(tokenizer, one.context, f" {one.word}") for one in every]
    found: list[Found] = losses(lm, pairs, step=lambda done: step(done, len(pairs)))
    word = "e to the mean loss of the last word; perplexity of lm-evaluation-harness"
    return (
        mean("acc", [float(one.greedy) for one in found], "the last word is the most likely text"),
        exponential("perplexity", [one.loss for one in found], word),
    )


__all__ = ["TASKS", "Evaluation", "Score", "evaluate_task", "perplexity"]
