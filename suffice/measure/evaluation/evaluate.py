"""Published tasks for language models: HellaSwag, LAMBADA and PIQA."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffice.errors import ConfigError, unknown
from suffice.measure.evaluation import items
from suffice.measure.evaluation.continuations import Found, apart, joined, losses
from suffice.measure.evaluation.result import Evaluation, Score, exponential, mean
from suffice.models import LM
from suffice.text import Tokenizer

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
    path = items.find(task, data)
    if task == "lambada":
        every = items.read(path, items.lambada)
        scores = _lambada(lm, tokenizer, every[:limit], step)
    else:
        every = items.read(path, items.hellaswag if task == "hellaswag" else items.piqa)
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
    lm: LM, tokenizer: Tokenizer, every: Sequence[items.Choice], step: Step, *, both: bool
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


def _lambada(
    lm: LM, tokenizer: Tokenizer, every: Sequence[items.Word], step: Step
) -> tuple[Score, ...]:
    pairs = [joined(tokenizer, one.context, f" {one.word}") for one in every]
    found: list[Found] = losses(lm, pairs, step=lambda done: step(done, len(pairs)))
    word = "e to the mean loss of the last word; perplexity of lm-evaluation-harness"
    return (
        mean("acc", [float(one.greedy) for one in found], "the last word is the most likely text"),
        exponential("perplexity", [one.loss for one in found], word),
    )
