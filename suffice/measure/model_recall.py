"""Measure a trained language model's recall of random tokens from its vocabulary.

Such rows hold nothing but what stood in them before, so a better second guess is recall.

Letters: B rows, T tokens, L tokens of a stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data.synthetic import stream, subsets
from suffice.measure.probe.mechanisms import out_of_reach
from suffice.measure.probe.report import Outcome
from suffice.measure.statistics import Summary, summarise
from suffice.models import LM

TOGETHER = 8  # rows computed at once
CUE, KEY = 2, 3  # tokens


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Rows [B, T], the query positions [A] and their target tokens [B, A].

    `before` are the positions [A] of the same tokens where they could not be known yet, `back` the
    fewest tokens from a question to its answer, `must_fail` why nobody can know ("" = one can).
    """

    name: str
    rows: Tensor
    query_positions: Tensor
    answers: Tensor
    back: int
    chance: float
    before: Tensor | None = None
    must_fail: str = ""


@dataclass(frozen=True, kw_only=True)
class Recall(Outcome):
    """A model's accuracy on one kind of question, over rows."""

    name: str  # name of the questions
    back: int  # least number of tokens from a question back to its answer
    # loss at the first time less that at the second, over rows, nats; None where there is one time
    # only
    gain: Summary | None


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
