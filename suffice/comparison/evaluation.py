"""Perplexity of a language model on a text, and its recall of random tokens, with controls.

Rows of random tokens hold nothing but what stood in them before, so a better second guess is
recall. Controls ask what nothing can answer; one that succeeds is an alarm.

Letters: B rows, T tokens, L tokens of a stretch.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data.synthetic import stream, subsets
from suffice.errors import ConfigError
from suffice.models import LM
from suffice.spec import AttentionSpec
from suffice.text import CORPORA, TokenFile, Tokenizer, corpus
from suffice.train.language import amount
from suffice.utils.statistics import Summary, summarise

Step = Callable[[int, int], None]
"""Receives the number of finished texts or windows, and of all."""

WINDOWS = 16  # computed at once
LARGEST_EXPONENT = 700.0  # whose power of e is a float
ENCODED = "of the text that is encoded"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of an evaluation."""

    name: str
    value: float
    standard_error: float | None  # over the items; None for a single item
    description: str  # formula of the value


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a model on a task."""

    task: str
    items: int  # evaluated
    of: int  # items in the source
    source: str  # file or corpus
    scores: tuple[Score, ...]

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
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}; give at least 1 item, or none for all.")
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
        _exponential(loss, error),
        *(
            Score(name=name, value=bits, standard_error=None, description=ENCODED)
            for name, bits in size.bits(loss).items()
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


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _exponential(loss: float, error: float | None) -> Score:
    value = math.exp(min(loss, LARGEST_EXPONENT))
    error = None if error is None else value * error
    return Score(name="perplexity", value=value, standard_error=error, description="e to the loss")


TOGETHER = 8  # rows computed at once
CUE, KEY = 2, 3  # tokens
SHORTEST = 16  # tokens of a stretch that comes again, and symbols there have to be
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
ROWS = 32  # of each question
TOLERANCE = 0.05  # above chance: what a control that fails may still get by luck
FAILED = "control failed as it must"
ALARM = "ALARM: control succeeded"


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Rows of tokens that ask for others."""

    name: str
    rows: Tensor  # [B, T]
    query_positions: Tensor  # [A]
    answers: Tensor  # [B, A], target tokens
    back: int  # fewest tokens from a question to its answer
    chance: float
    before: Tensor | None = None  # [A], of the same tokens where they could not be known yet
    must_fail: str = ""  # why nobody can know; "": one can


@dataclass(frozen=True, kw_only=True)
class Recall:
    """A model's accuracy on one kind of question, over rows."""

    name: str  # of the questions
    accuracy: Summary
    chance: float  # accuracy of a guess
    control: str  # reason why it must fail; "" where it may succeed
    back: int  # fewest tokens from a question back to its answer
    gain: Summary | None  # loss at the first time less that at the second, nats; None: one time

    @property
    def above(self) -> bool:
        """Whether it is above chance by more than luck gives."""
        return self.accuracy.mean > self.chance + TOLERANCE

    @property
    def verdict(self) -> str:
        """A verdict in a few words."""
        if self.control:
            return ALARM if self.above else FAILED
        return "recalled" if self.above else "at chance"


@dataclass(frozen=True, kw_only=True)
class RecallReport:
    """What a model recalls, by question."""

    rows: int  # of each question
    reach: int | None  # tokens back that the model can attend to; None: all
    recalls: tuple[Recall, ...]

    @property
    def alarms(self) -> tuple[Recall, ...]:
        """The controls that succeeded: then no other question can be trusted."""
        return tuple(one for one in self.recalls if one.control and one.above)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        recalls = [{**asdict(one), "verdict": one.verdict} for one in self.recalls]
        head = {"task": "recall", "rows": self.rows, "reach": self.reach}
        return {**head, "alarms": len(self.alarms), "recalls": recalls}


def measure_recall(
    lm: LM,
    symbols: Sequence[int],
    *,
    begin: int | None = None,
    rows: int = ROWS,
    step: Callable[[int, int], None] = lambda _done, _total: None,
) -> RecallReport:
    """Return what a trained language model recalls of repeated random tokens and of passkeys.

    Args:
        lm: in evaluation.
        symbols: ids of tokens that rows are drawn from, at least 16.
        begin: the token that its texts begin with, if any.
        rows: rows of each question, at least 1.
        step: called with how many questions were asked, and of how many.

    Raises:
        ConfigError: if there are too few symbols or rows, or the model reads too few tokens.
    """
    if rows < 1:
        raise ConfigError(f"rows={rows}; give at least 1.")
    if min(len(symbols), lm.config.length // 2) < SHORTEST:
        raise ConfigError(
            f"a model of {lm.config.length} tokens and {len(symbols)} symbols is too small to be "
            f"asked what it recalls; that takes {2 * SHORTEST} tokens and {SHORTEST} symbols."
        )
    asked = list(_questions(torch.tensor(symbols), lm.config.length, begin, rows))
    recalls = []
    for done, questions in enumerate(asked, start=1):
        recalls.append(ask(lm, questions))
        step(done, len(asked))
    return RecallReport(rows=rows, reach=receptive_field(lm.specs), recalls=tuple(recalls))


def _questions(symbols: Tensor, length: int, begin: int | None, rows: int) -> Iterator[Questions]:
    sizes: dict[str, Any] = {"rows": rows, "begin": begin}
    room = length - (begin is not None)
    for size in _doubled(SHORTEST, min(room // 2, len(symbols))):
        for shuffled in (False, True):
            yield repeated(symbols, length=size, shuffled=shuffled, **sizes)
    for size in _doubled(2 * SHORTEST, length):
        for depth in DEPTHS:
            yield passkey(symbols, length=size, depth=depth, **sizes)
        yield passkey(symbols, length=size, depth=0.5, shuffled=True, **sizes)


def _doubled(first: int, last: int) -> list[int]:
    return [first << n for n in range((last // first).bit_length())]


def sees_pairs(spec: AttentionSpec) -> bool:
    """Return whether a layer reads earlier tokens only through the pairs of its pattern."""
    return spec.beyond_pairs.keys() <= {"shares"}


def receptive_field(
    specs: Sequence[AttentionSpec], *, cache_tokens: int | None = None
) -> int | None:
    """Return how many tokens back a causal model can attend to; None = all of them.

    The distances that layers attend to add up.

    Example:
        >>> from suffice import preset
        >>> receptive_field([preset("sliding_window", 16, 2, window=4, causal=True)] * 2)
        6
        >>> receptive_field([preset("standard", 16, 2, causal=True)] * 2, cache_tokens=4)
        6
        >>> receptive_field([preset("linear", 16, 2, causal=True)]) is None
        True
    """
    total = 0
    for spec in specs:
        bounds = [n for n in (spec.pattern.reach, cache_tokens) if n is not None]
        if not bounds or not sees_pairs(spec):
            return None
        total += min(bounds) - 1
    return total


def out_of_reach(
    specs: Sequence[AttentionSpec], back: int, *, cache_tokens: int | None = None
) -> str:
    """Return why a causal model cannot attend `back` tokens back; "" if it can."""
    far = receptive_field(specs, cache_tokens=cache_tokens)
    if far is None or back <= far:
        return ""
    return f"{far} tokens back can be attended to"


def state_bytes(specs: Sequence[AttentionSpec], tokens: int) -> float:
    """Return the bytes a layer keeps of so many tokens in float32, the mean of the layers.

    A layer that reaches back less far keeps what it can still see.

    Example:
        >>> from suffice import preset
        >>> state_bytes([preset("standard", 16, 2, causal=True)], 24)
        3072.0
        >>> state_bytes([preset("sliding_window", 16, 2, window=4, causal=True)], 24)
        512.0
    """
    sizes = []
    for spec in specs:
        reach = spec.pattern.reach if sees_pairs(spec) else None
        sizes.append(spec.cost(tokens).state_bytes(tokens if reach is None else min(tokens, reach)))
    return sum(sizes) / len(sizes)


def repeated(
    symbols: Tensor, *, length: int, rows: int, begin: int | None, shuffled: bool = False
) -> Questions:
    """Return rows [B, 2 L] of L different tokens and the same again, or shuffled: the control."""
    random = stream("probe", f"repeated {length}", 0)
    first = symbols[torch.from_numpy(subsets(random, rows, of=len(symbols), size=length))]
    again = first
    if shuffled:
        order = torch.from_numpy(subsets(random, rows, of=length, size=length))
        again = first.gather(1, order)
    tokens = _begun(torch.cat([first, again], dim=1), begin)
    at = torch.arange(length - 1) + tokens.shape[1] - length
    return Questions(
        name="a stretch again, shuffled" if shuffled else "a stretch again",
        rows=tokens,
        query_positions=at,
        answers=again[:, 1:],
        back=length - 1,
        chance=sum(1 / left for left in range(1, length)) / (length - 1),
        before=at - length,
        must_fail="the second time has another order" if shuffled else "",
    )


def passkey(
    symbols: Tensor,
    *,
    length: int,
    depth: float,
    rows: int,
    begin: int | None,
    shuffled: bool = False,
) -> Questions:
    """Return rows [B, T] of noise around a cue and a key, then the cue, or another: the control.

    `depth` is where the key stands in the noise, from 0 to 1.
    """
    random = stream("probe", f"passkey {length} {depth}", 0)
    order = symbols[torch.from_numpy(subsets(random, rows, of=len(symbols), size=len(symbols)))]
    cue, other = order[:, : CUE + KEY], order[:, CUE + KEY : 2 * (CUE + KEY)]
    noise = length - (begin is not None) - (CUE + KEY) - (CUE + KEY - 1)
    places = random.randint(2 * (CUE + KEY), len(symbols), size=(rows, noise))
    filler = order.gather(1, torch.from_numpy(places))
    at = round(depth * noise)
    end = other if shuffled else cue
    tokens = _begun(torch.cat([filler[:, :at], cue, filler[:, at:], end[:, :-1]], dim=1), begin)
    query_positions = torch.arange(KEY) + tokens.shape[1] - KEY
    return Questions(
        name=f"passkey at {depth:.0%}" + (", another cue" if shuffled else ""),
        rows=tokens,
        query_positions=query_positions,
        answers=cue[:, CUE:],
        back=noise - at + CUE + KEY - 1,
        chance=1 / len(symbols),
        must_fail="the cue is another one" if shuffled else "",
    )


def ask(lm: LM, questions: Questions) -> Recall:
    """Return what a model answers; rows are what the interval is over."""
    right, second = scores(lm, questions)
    gain = None
    if questions.before is not None:
        _, first = scores(lm, questions, questions.before)
        gain = summarise([f - s for f, s in zip(first, second, strict=True)])
    return Recall(
        name=questions.name,
        back=questions.back,
        accuracy=summarise(right),
        gain=gain,
        chance=questions.chance,
        control=questions.must_fail or out_of_reach(lm.specs, questions.back),
    )


@torch.inference_mode()
def scores(
    lm: LM, questions: Questions, places: Tensor | None = None
) -> tuple[list[float], list[float]]:
    """Return the accuracy and the mean loss of each row, at its questions or other places."""
    at = questions.query_positions if places is None else places
    right: list[float] = []
    losses: list[float] = []
    batches = zip(questions.rows.split(TOGETHER), questions.answers.split(TOGETHER), strict=True)
    for rows, answers in batches:
        features = lm.features(rows.to(lm.device))[:, at.to(lm.device)]
        logits, targets = lm.logits(features).float(), answers.to(lm.device)
        right += (logits.argmax(dim=-1) == targets).double().mean(dim=1).tolist()
        loss = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        losses += loss.double().mean(dim=1).tolist()
    return right, losses


def _begun(rows: Tensor, begin: int | None) -> Tensor:
    return rows if begin is None else F.pad(rows, (1, 0), value=begin)
