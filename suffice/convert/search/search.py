"""`search`: the choice for each layer that keeps a model nearest to itself within a budget.

Every layer is fitted with every option once, each pair is scored alone, and an integer program
chooses. What it chose is converted and measured as a whole, on text that nothing was chosen by.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from suffice.convert.convert import convert
from suffice.convert.search import mixes
from suffice.convert.search import scoring as decoding
from suffice.convert.search.mixes import Chosen, Mixer
from suffice.convert.search.options import Option, library
from suffice.convert.search.problem import Key, Table, budget_of, way_of
from suffice.convert.search.result import Found, Score
from suffice.convert.search.scoring import (
    NATIVE,
    TORCH,
    WAYS,
    Fits,
    Judge,
    Rows,
    Work,
    added,
    by_rank,
    fingerprint,
    ordered,
    score,
    time_layers,
    time_models,
)
from suffice.errors import ConfigError, DataError
from suffice.measure.statistics import summarise
from suffice.measure.timing import summarise_times
from suffice.models import LM
from suffice.quantise.report import rows_of
from suffice.text import Corpus, Documents, Tokenizer

MINUTES = 10.0
SCORING, ALL = 0.6, 0.9  # of the time: when scoring ends, when measuring of rivals does
Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Rows of tokens [B, T] with nothing in common; every token but a row's first is predicted.

    Args:
        calibration: options are fitted on.
        scoring: options are chosen by.
        judging: what is chosen is measured on.
    """

    calibration: Sequence[Tensor]
    scoring: Sequence[Tensor]
    judging: Sequence[Tensor]


def search(
    model: nn.Module,
    budget: str,
    texts: Texts,
    *,
    length: int | None = None,
    minutes: float = MINUTES,
    words: Sequence[str] | None = None,
    work: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    step: Step = lambda _what, _done, _total: None,
) -> Found:
    """Return the plan that changes a language model least within a budget.

    Args:
        model: a language model; it stays as it is.
        budget: bounds such as "state<=25%, latency<=0.8x" (see `budget_of`). Without a bound of
            state, latency or parameters the least state is looked for.
        texts: rows of text.
        length: tokens of the text behind which costs count; None = as long as the rows are.
        minutes: after about so long nothing more is scored, as soon as what is can meet the budget.
        words: changes to choose from beside keeping; None = all that are legal.
        work: folder that holds what is done, so that it can be resumed.
        resume: whether to go on with what it holds.
        seed: of drawn rivals.
        step: told what is done, and how much of it.

    Raises:
        ConfigError: if the model is no language model, the budget is not legal or nothing meets
            it, no layer can become anything else, or the folder holds another search.
    """
    began = time.monotonic()
    limits = budget_of(budget)
    lm = _checked(model, minutes)
    length = length or texts.scoring[0].shape[1]
    options = library(lm, length, words)
    table = Table(options=list(options.values()), length=length, others=mixes.parameters_beside(lm))
    table.choose([limit for limit in limits if table.knows(limit.name)])
    kept = Work(work)
    kept.claim(_asked(lm, texts, length, words), resume=resume)
    table = _timed(table, lm, kept, step)
    table.choose([limit for limit in limits if table.knows(limit.name)])
    if words is None:
        table = table.needed(limits)
    left = {one.key for row in table.options for one in row}
    lm = _ordered(lm, options, texts, kept)
    options = {
        name: tuple(one for one in row if one.key in left)
        for name, row in library(lm, length, words).items()
    }

    def late(share: float) -> bool:
        return time.monotonic() - began > 60.0 * minutes * share

    table = replace(table, options=list(options.values()))
    fits = Fits(lm, [one for row in options.values() for one in row], kept)
    fits.fit(texts.calibration, step)
    judge, ranked = Judge(lm, texts.scoring), by_rank(options)
    rows = score(
        judge,
        fits,
        ranked,
        kept,
        late=lambda known: late(SCORING) and replace(table, rows=known).suffices(limits),
        step=lambda *of: step("scoring", *of),
    )
    table = replace(table, rows=rows)
    way, problem, usable, picks = table.choose(limits)
    mixer = Mixer(
        table=table,
        problem=problem,
        options=usable,
        limits=limits,
        way=way,
        fits=fits,
        late=lambda: late(ALL),
        step=step,
    )
    chosen = mixer.weigh(judge, picks)
    return _found(mixer, chosen, lm, texts, seed, budget)


def _checked(model: nn.Module, minutes: float) -> LM:
    if type(model) is not LM:
        raise ConfigError(
            f"{type(model).__name__} is no language model, and what search weighs is the state and "
            "the step of one; convert it by words of your own."
        )
    if not minutes > 0.0:
        raise ConfigError(f"minutes={minutes:g}: give a time above 0.")
    return copy.deepcopy(model).eval()


def _asked(lm: LM, texts: Texts, length: int, words: Sequence[str] | None) -> dict[str, Any]:
    """Return what the results depend on."""
    text = [*texts.calibration, *texts.scoring]
    return {
        "model": fingerprint(lm.state_dict().values()),
        "text": fingerprint(text),
        "length": length,
        "library": None if words is None else list(words),
    }


def _ordered(lm: LM, options: Mapping[str, Sequence[Option]], texts: Texts, work: Work) -> LM:
    """Return the model in the order of features that what is kept was fitted in."""
    found = work.tensors("ordered")
    if found is not None:
        lm.load_state_dict(found[0])
        return lm
    other = ordered(lm, options, texts.calibration)
    if other is not lm:
        work.keep("ordered", dict(other.state_dict()), {})
    return other


def _timed(table: Table, lm: LM, work: Work, step: Step) -> Table:
    """Return the table with latencies, of this search or of the one that goes on."""
    found = work.read("latency")
    every = [one for row in table.options for one in row]
    if found is None:
        found = _times(every, lm, table.length, step)
        work.write("latency", found)
    specs = _specs(every)
    keep = {one.layer: specs[one.change.spec] for one in every if one.kept}
    latency: dict[str, dict[Key, float]] = {}
    for way, whole in found["steps"].items():
        medians = {at: times[-1]["median"] for at, times in found["layers"][way].items()}
        latency[way] = {
            one.key: added(medians[at], medians[keep[one.layer]], whole / len(keep))
            for one in every
            if (at := specs[one.change.spec]) in medians
        }
    return replace(table, latency=latency, steps=found["steps"])


def _specs(options: Sequence[Option]) -> dict[Any, str]:
    """Number the kinds of layers."""
    found = dict.fromkeys(one.change.spec for one in options)
    return {spec: str(number) for number, spec in enumerate(found)}


def _times(options: Sequence[Option], lm: LM, length: int, step: Step) -> dict[str, Any]:
    """Return the seconds of steps as plain data."""
    specs = _specs(options)
    timed = time_layers(lm, list(specs), length, lambda *of: step("timing", *of))
    layers: dict[str, dict[str, list[dict[str, float]]]] = {}
    for (way, spec), times in timed.layers.items():
        found = [{"low": t.low, "median": t.median, "high": t.high} for t in times]
        layers.setdefault(way, {})[specs[spec]] = found
    calls = {way: decoding.stepper(lm, length, way) for way in WAYS}
    samples = time_models({w: call for w, call in calls.items() if call is not None}, lm.device)
    steps = {way: summarise_times(one).median for way, one in samples.items()}
    kinds = {specs[one.change.spec]: one.words for one in reversed(options)}
    return {"lengths": list(timed.lengths), "kinds": kinds, "layers": layers, "steps": steps}


def _found(mixer: Mixer, chosen: Chosen, lm: LM, texts: Texts, seed: int, budget: str) -> Found:
    """Convert the plan, measure it and its rivals."""
    table, picked = mixer.table, mixer.picked(chosen.picks)
    judge = Judge(lm, texts.judging)
    before = judge.rows({})
    made = convert(
        lm,
        [one.words for one in picked],
        calibration=texts.calibration,
        held_out=texts.judging,
        step=mixer.step,
    )
    rows = judge.rows_of(made.model)
    own = way_of([row[0] for row in table.options], table.latency)
    way = mixer.way if mixer.way == NATIVE else way_of(picked, table.latency)
    ways = (own, way)
    plan = mixer.mix("plan", chosen.picks, rows, before)
    rivals = mixer.rivals(judge, before, seed)
    quantities = [
        *mixes.costs(table, mixer.limits, picked, way, made.model),
        mixes.latency(table, mixer.limits, picked, ways, (lm, made.model)),
        *mixes.quantities(table, mixer.limits, picked, way, rows, before),
    ]
    return Found(
        budget=budget,
        words=plan.words,
        layers=tuple(_score(table, one) for one in picked),
        length=table.length,
        way=way,
        source_way=own,
        quantities=tuple(quantities),
        mixes=(plan, *rivals),
        additive=chosen.additive,
        weighed=chosen.weighed,
        moved=chosen.moved,
        scored=len(table.rows),
        pairs=sum(map(len, table.options)),
        held=(
            mixes.held(lm, table.length, own),
            mixes.held(made.model, table.length, way),
        ),
        certificate=made.certificate,
        scores=tuple(
            _score(table, one) for row in table.options for one in row if one.key in table.rows
        ),
    )


def _score(table: Table, one: Option) -> Score:
    rows: Mapping[Key, Rows] = table.rows
    return Score(
        layer=one.layer,
        words=one.words,
        divergence=summarise(rows[one.key].divergence),
        state=int(table.cost("state", one, TORCH)),
        parameters=int(table.cost("parameters", one, TORCH)),
        latency={way: of_way.get(one.key) for way, of_way in table.latency.items()},
    )


TOGETHER = 1 << 12  # tokens of a batch
LEAST = 4  # rows of each part
DOCUMENTS = 8  # that rows come from at least, where there are as many
SAMPLE = 4000  # characters that tell how many a token has
SPARE = 1.25  # documents differ
HELD = 2  # of what is learnt from, one part chooses and as much judges


def rows_for(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> dict[str, list[Tensor]]:
    """Return batches of rows [B, T]: "calibration", "scoring" and "judging".

    What is learnt from is of the training part. Of the validation part every other row chooses and
    the others judge. Documents give like shares where there are few, about an eighth at most.

    Args:
        corpus: the text.
        tokenizer: of the model.
        length: tokens of a row, T.
        tokens: to learn from; half as many choose, and as many judge.

    Raises:
        DataError: if a part of the text is too short.
    """
    train, held = corpus.train, corpus.validation
    learnt = _rows(train, train.name, tokenizer, length, tokens, LEAST)
    rest = _rows(held, held.name, tokenizer, length, 2 * tokens // HELD, 2 * LEAST)
    parts = {"calibration": learnt, "scoring": rest[::2], "judging": rest[1::2]}
    together = max(TOGETHER // length, 1)
    return {name: list(rows.split(together)) for name, rows in parts.items()}


def _share(documents: Documents, tokenizer: Tokenizer, tokens: int) -> int | None:
    """Return how many characters of each document are enough; None = all."""
    if not documents.count:
        return None
    sample = next(iter(documents))[:SAMPLE]
    each = SPARE * len(sample) / max(len(tokenizer.encode(sample)), 1)
    return math.ceil(each * tokens / min(documents.count, DOCUMENTS))


def _rows(
    documents: Documents, name: str, tokenizer: Tokenizer, length: int, tokens: int, least: int
) -> Tensor:
    wanted = max(tokens, least * length)
    long = _share(documents, tokenizer, wanted)
    beginnings = (document[:long] for document in documents)
    rows = rows_of(beginnings, tokenizer, length=length, tokens=wanted)
    if len(rows) < least or rows.shape[1] < length:
        raise DataError(
            f"{name} gives {rows.numel():,} tokens in rows, less than {least} rows of "
            f"{length}; give more text, or a smaller --length."
        )
    return rows
