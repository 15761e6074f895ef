"""`search`: the option of each layer that changes a model least within a budget.

Every layer is fitted with every option once, each option is scored alone, and an integer program
chooses. The plan is converted and measured as a whole, on text that nothing was chosen by.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor, nn

from suffice.convert.convert import convert
from suffice.convert.search.options import Option, library, parameters, state_bytes
from suffice.convert.search.problem import Choice, CostTable, Limit, Program, backend_of, budget_of
from suffice.convert.search.result import Combination, OptionScore, Quantity, SearchResult
from suffice.convert.search.scoring import (
    CandidateFits,
    Evaluator,
    Key,
    RowScores,
    WorkFolder,
    by_rank,
    fingerprint,
    permuted_for_all,
    score,
)
from suffice.convert.search.timing import (
    BACKENDS,
    NATIVE,
    TORCH,
    added_seconds,
    lengths_up_to,
    prefill,
    state_for,
    stepper,
    time_calls,
    time_layers,
    timed_as,
)
from suffice.convert.sources import Source
from suffice.errors import ConfigError, DataError
from suffice.models import LM
from suffice.quantise.report import rows_of
from suffice.text import Corpus, Documents, Tokenizer, corpus
from suffice.utils.statistics import Summary, summarise
from suffice.utils.timing import summarise_times

MINUTES = 10.0
SCORING_SHARE = 0.6  # of the time, when scoring ends
TOTAL_SHARE = 0.9  # of the time, when measuring of rivals ends
MAX_LENGTH = 512  # tokens of a row, if the model reads more
BATCH_TOKENS = 1 << 12
MIN_ROWS = 4  # of each part
MIN_DOCUMENTS = 8  # that rows come from, where there are that many
SAMPLE = 4000  # characters that the characters per token are estimated from
MARGIN = 1.25  # on that estimate, as documents differ
NEIGHBOURS, UNIFORM, RANDOM = 24, 12, 16  # combinations of a kind that are measured at most
MINIMUM = 4  # of those that a plan is compared with, however late it is
ROUNDS = 31

Step = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class SearchTexts:
    """Batches of rows of tokens [B, T], of which every token but a row's first is predicted."""

    calibration: Sequence[Tensor]  # batches to fit options on
    scoring: Sequence[Tensor]  # batches to choose options by
    judging: Sequence[Tensor]  # batches to measure the plan on

    @classmethod
    def of(
        cls, source: Source, text: str, *, tokens: int, length: int | None = None
    ) -> SearchTexts:
        """Return rows of a corpus for a model, of `length` tokens or at most MAX_LENGTH."""
        longest = source.model.config.length
        if length is not None and length > longest:
            raise ConfigError(f"--length {length}: the model reads at most {longest} tokens.")
        length = length or min(longest, MAX_LENGTH)
        return cls(**rows_for(corpus(text), source.tokenizer, length=length, tokens=tokens))


def check_source(source: Source) -> None:
    """Refuse other models than language models, and those without a tokenizer."""
    if not isinstance(source.model, LM):
        raise ConfigError(
            f"a {source.kind} model is not a language model, and search weighs state and step "
            "of one; use `suffice convert` with a target of your own."
        )
    if source.tokenizer is None:
        raise ConfigError(
            f"this {source.kind} model has no tokenizer, so no text can be read; name "
            "one with --tokenizer."
        )


def search(
    model: nn.Module,
    budget: str,
    texts: SearchTexts,
    *,
    length: int | None = None,
    minutes: float = MINUTES,
    words: Sequence[str] | None = None,
    work: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    step: Step = lambda _stage, _done, _total: None,
) -> SearchResult:
    """Return the plan that changes a language model least within a budget.

    Args:
        model: a language model; it is not changed.
        budget: bounds such as "state<=25%, latency<=0.8x" (see `budget_of`). Without a bound of
            state, latency or parameters the state is minimised.
        texts: rows without common text.
        length: tokens of the text behind which costs count; None: the length of the rows.
        minutes: approximate time of scoring; it ends once the scored options meet the budget.
        words: targets to choose from besides keeping; None: all that are possible.
        work: folder for intermediate results, so that the search can be resumed.
        resume: whether to resume the search in that folder.
        seed: seed of the random combinations that the plan is compared with.
        step: function called with the stage, and how much of it is done.

    Raises:
        ConfigError: if the model is not a language model, the budget is not legal or nothing meets
            it, no layer can be converted, or the folder holds another search.
    """
    began = time.monotonic()

    def late(share: float) -> bool:
        return time.monotonic() - began > 60.0 * minutes * share

    limits = budget_of(budget)
    lm = _checked_copy(model, minutes)
    length = length or texts.scoring[0].shape[1]
    options = library(lm, length, words)
    attention = sum(parameters(block.attention.spec) for block in lm.blocks)
    others = sum(one.numel() for one in lm.parameters()) - attention
    table = CostTable(options=list(options.values()), length=length, others=others)
    table.choose([limit for limit in limits if table.knows(limit.name)])
    folder = WorkFolder(work)
    settings = {
        "model": fingerprint(lm.state_dict().values()),
        "text": fingerprint([*texts.calibration, *texts.scoring]),
        "length": length,
        "library": None if words is None else list(words),
    }
    folder.claim(settings, resume=resume)
    table = _with_latency(table, lm, folder, step)
    table.choose([limit for limit in limits if table.knows(limit.name)])
    if words is None:
        table = table.without_dominated(limits)
    left = {one.key for row in table.options for one in row}
    lm = _permuted(lm, options, texts, folder)
    options = {
        name: tuple(one for one in row if one.key in left)
        for name, row in library(lm, length, words).items()
    }
    table = replace(table, options=list(options.values()))
    fits = CandidateFits(lm, [one for row in options.values() for one in row], folder)
    fits.fit(texts.calibration, step)
    evaluator = Evaluator(lm, texts.scoring)
    rows = score(
        evaluator,
        fits,
        by_rank(options),
        folder,
        late=lambda scores: late(SCORING_SHARE) and replace(table, rows=scores).suffices(limits),
        step=lambda *progress: step("scoring", *progress),
    )
    table = replace(table, rows=rows)
    backend, program, usable, choice = table.choose(limits)
    comparison = _Comparison(
        table=table,
        program=program,
        options=usable,
        limits=limits,
        backend=backend,
        fits=fits,
        late=lambda: late(TOTAL_SHARE),
        step=step,
    )
    return _result(comparison, comparison.plan(evaluator, choice), lm, texts, seed, budget)


def _checked_copy(model: nn.Module, minutes: float) -> LM:
    if type(model) is not LM:
        raise ConfigError(
            f"{type(model).__name__} is not a language model, and search weighs the state and the "
            "decoding step of one; convert it to targets of your choice."
        )
    if not 0.0 < minutes < 1e6:
        raise ConfigError(f"minutes={minutes:g}: give a time above 0, of at most a million.")
    return copy.deepcopy(model).eval()


def _permuted(
    lm: LM, options: Mapping[str, Sequence[Option]], texts: SearchTexts, folder: WorkFolder
) -> LM:
    stored = folder.read_tensors("ordered")
    if stored is not None:
        lm.load_state_dict(stored[0])
        return lm
    permuted = permuted_for_all(lm, options, texts.calibration)
    if permuted is not lm:
        folder.write_tensors("ordered", dict(permuted.state_dict()), {})
    return permuted


def _with_latency(table: CostTable, lm: LM, folder: WorkFolder, step: Step) -> CostTable:
    options = [one for row in table.options for one in row]
    specs = dict.fromkeys(timed_as(one.change.spec) for one in options)
    numbers = {spec: str(number) for number, spec in enumerate(specs)}
    times = folder.read("latency")
    if times is None:
        times = _measure_latency(options, numbers, lm, table.length, step)
        folder.write("latency", times)
    number_of = {one.key: numbers[timed_as(one.change.spec)] for one in options}
    keep = {one.layer: number_of[one.key] for one in options if one.change.unchanged}
    latency: dict[str, dict[Key, float]] = {}
    for backend, seconds in times["steps"].items():
        layers = times["layers"][backend]
        medians = {number: of_length[-1]["median"] for number, of_length in layers.items()}
        latency[backend] = {
            one.key: added_seconds(medians[number], medians[keep[one.layer]], seconds / len(keep))
            for one in options
            if (number := number_of[one.key]) in medians
        }
    return replace(table, latency=latency, steps=times["steps"])


def _measure_latency(
    options: Sequence[Option], numbers: Mapping[Any, str], lm: LM, length: int, step: Step
) -> dict[str, Any]:
    timed = time_layers(lm, list(numbers), length, lambda *progress: step("timing", *progress))
    layers: dict[str, dict[str, list[dict[str, float]]]] = {}
    for (backend, spec), times in timed.items():
        rows = [{"low": t.low, "median": t.median, "high": t.high} for t in times]
        layers.setdefault(backend, {})[numbers[spec]] = rows
    calls = {backend: stepper(lm, length, backend) for backend in BACKENDS}
    samples = time_calls({b: call for b, call in calls.items() if call is not None}, lm.device)
    return {
        "lengths": list(lengths_up_to(length)),
        "kinds": {numbers[timed_as(one.change.spec)]: one.words for one in reversed(options)},
        "layers": layers,
        "steps": {backend: summarise_times(one).median for backend, one in samples.items()},
    }


def _result(
    comparison: _Comparison, plan: _Plan, lm: LM, texts: SearchTexts, seed: int, budget: str
) -> SearchResult:
    table, chosen = comparison.table, comparison.chosen(plan.choice)
    evaluator = Evaluator(lm, texts.judging)
    before = evaluator.with_layers({})
    converted = convert(
        lm,
        [one.words for one in chosen],
        calibration=texts.calibration,
        held_out=texts.judging,
        step=comparison.step,
    )
    rows = evaluator.of_model(converted.model)
    source_backend = backend_of([row[0] for row in table.options], table.latency)
    backend = NATIVE if comparison.backend == NATIVE else backend_of(chosen, table.latency)
    combination = comparison.combination("plan", plan.choice, rows, before)
    rivals = comparison.rivals(evaluator, before, seed)
    quantities = [
        *comparison.exact_costs(chosen, backend, converted.model),
        comparison.latency(chosen, (source_backend, backend), (lm, converted.model)),
        *comparison.quality(plan.choice, rows, before),
    ]
    return SearchResult(
        budget=budget,
        words=combination.words,
        layers=tuple(_score(table, one) for one in chosen),
        length=table.length,
        way=backend,
        source_way=source_backend,
        quantities=tuple(quantities),
        mixes=(combination, *rivals),
        additive=plan.additive,
        weighed=plan.weighed,
        moved=plan.moved,
        scored=len(table.rows),
        pairs=sum(map(len, table.options)),
        held=(
            _allocated_bytes(lm, table.length, source_backend),
            _allocated_bytes(converted.model, table.length, backend),
        ),
        certificate=converted.certificate,
        scores=tuple(
            _score(table, one) for row in table.options for one in row if one.key in table.rows
        ),
    )


def _score(table: CostTable, option: Option) -> OptionScore:
    return OptionScore(
        layer=option.layer,
        words=option.words,
        divergence=summarise(table.rows[option.key].divergence),
        state=int(table.cost("state", option, TORCH)),
        parameters=int(table.cost("parameters", option, TORCH)),
        latency={backend: known.get(option.key) for backend, known in table.latency.items()},
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    choice: Choice
    additive: bool | None  # whether its layers' divergences add up; None: nothing changes
    weighed: int = 0  # neighbours that were measured
    moved: bool = False  # whether one of them was chosen instead


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    table: CostTable
    program: Program  # of one backend
    options: Sequence[Sequence[Option]]  # that it chooses from
    limits: Sequence[Limit]
    backend: str
    fits: CandidateFits
    late: Callable[[], bool]  # whether time is up
    step: Step

    def chosen(self, choice: Choice) -> list[Option]:
        return [of_layer[one] for of_layer, one in zip(self.options, choice, strict=True)]

    def measure(self, evaluator: Evaluator, choice: Choice) -> RowScores:
        layers = {one.layer: self.fits.layer(one) for one in self.chosen(choice)}
        return evaluator.with_layers({n: one for n, one in layers.items() if one is not None})

    def cost(self, name: str, choice: Choice) -> float:
        return sum(self.table.cost(name, one, self.backend) for one in self.chosen(choice))

    def plan(self, evaluator: Evaluator, choice: Choice) -> _Plan:
        """Measure a choice, and its neighbours if its divergence is not the sum of its layers'."""
        options = self.chosen(choice)
        if all(one.change.unchanged for one in options):
            return _Plan(choice=choice, additive=None)
        rows = self.measure(evaluator, choice)
        parts = zip(*(self.table.rows[one.key].divergence for one in options), strict=True)
        excess = summarise(
            [far - sum(row) for far, row in zip(rows.divergence, parts, strict=True)]
        )
        if excess.low is not None and excess.low <= 0.0 <= excess.high:
            return _Plan(choice=choice, additive=True)
        measured = {choice: rows}
        near = self.program.neighbours(choice, NEIGHBOURS)
        for done, other in enumerate(near, start=1):
            if self.late():
                break
            measured[other] = self.measure(evaluator, other)
            self.step("weighing", done, len(near))
        best = min(measured, key=lambda one: (*self._rank(one, measured[one]), one != choice))
        weighed = len(measured) - 1
        return _Plan(choice=best, additive=False, weighed=weighed, moved=best != choice)

    def _rank(self, choice: Choice, rows: RowScores) -> tuple[float, float]:
        """Return by how much a choice exceeds bounds of quality, and what is minimised."""
        measured = {"divergence": rows.divergence, "loss": rows.loss}
        excess = 0.0
        for limit in self.limits:
            if limit.name in measured:
                bound = limit.of(self.table.source(limit.name))
                excess += max(summarise(measured[limit.name]).mean / bound - 1.0, 0.0)
        if self.table.minimises_state(self.limits):
            return excess, self.program.score(choice)
        return excess, summarise(rows.divergence).mean

    def combination(
        self, kind: str, choice: Choice, rows: RowScores, before: RowScores
    ) -> Combination:
        return Combination(
            kind=kind,
            words=tuple(one.words for one in self.chosen(choice)),
            predicted=self.cost("divergence", choice),
            divergence=summarise(rows.divergence),
            loss=_change_of_loss(before, rows),
            state=self.cost("state", choice),
            rows=rows.divergence,
        )

    def rivals(self, evaluator: Evaluator, before: RowScores, seed: int) -> list[Combination]:
        """Measure choices of one target: of all layers, or of those that lose least; and random."""
        draws = Random(seed)
        drawn = (self.program.random(draws) for _ in range(RANDOM))
        choices = [("uniform", choice) for choice in self._uniform()]
        choices += [("greedy", choice) for choice in self._greedy()]
        choices += [("random", one) for one in dict.fromkeys(drawn) if one is not None]
        rivals: list[Combination] = []
        for done, (kind, choice) in enumerate(choices, start=1):
            few = sum(one.kind == kind for one in rivals) < MINIMUM
            if few or not self.late():
                rows = self.measure(evaluator, choice)
                rivals.append(self.combination(kind, choice, rows, before))
            self.step("comparing", done, len(choices))
        return rivals

    def _common(self) -> list[Choice]:
        places = [{one.words: at for at, one in enumerate(row)} for row in self.options]
        common = [words for words in places[0] if all(words in row for row in places)]
        return [tuple(row[words] for row in places) for words in common]

    def _greedy(self) -> list[Choice]:
        """Return, for each option, the layers that lose least by it alone until the budget is met.

        Source: arXiv:2512.20569, which ranks layers by the divergence. Differs: by the loss.
        """
        kept = [[at for at, one in enumerate(row) if one.change.unchanged] for row in self.options]
        choices: list[Choice] = []
        for common in self._common() if all(kept) else ():
            options = [row[at] for row, at in zip(self.options, common, strict=True)]
            losses = [self.table.cost("loss", one, self.backend) for one in options]
            choice = [at for at, *_ in kept]
            for layer in sorted(range(len(losses)), key=losses.__getitem__)[:-1]:
                choice[layer] = common[layer]
                if self.program.meets(tuple(choice)):
                    choices.append(tuple(choice))
                    break
        return sorted(choices, key=lambda choice: self.cost("loss", choice))[:UNIFORM]

    def _uniform(self) -> list[Choice]:
        legal = filter(self.program.meets, self._common())
        return sorted(legal, key=lambda choice: self.cost("divergence", choice))[:UNIFORM]

    def quality(self, choice: Choice, rows: RowScores, before: RowScores) -> list[Quantity]:
        """Return loss and divergence of a plan, predicted and measured on rows not chosen by."""
        divergence, source = summarise(rows.divergence), summarise(before.loss).mean
        change = _change_of_loss(before, rows)
        low, high = (None if end is None else source + end for end in (change.low, change.high))
        predicted, measured = source + self.cost("loss", choice), summarise(rows.loss).mean
        return [
            self._quantity("loss", source, predicted, measured, low, high),
            self._quantity(
                "divergence",
                0.0,
                self.cost("divergence", choice),
                divergence.mean,
                divergence.low,
                divergence.high,
            ),
        ]

    def exact_costs(self, options: Sequence[Option], backend: str, lm: LM) -> list[Quantity]:
        """Return state and parameters of a plan, predicted and counted in its model."""
        counted = {
            "state": sum(
                state_bytes(block.attention.spec, self.table.length, rolls=backend == TORCH)
                for block in lm.blocks
            ),
            "parameters": sum(one.numel() for one in lm.parameters()),
        }
        quantities = []
        for name, measured in counted.items():
            added = sum(self.table.cost(name, one, backend) for one in options)
            predicted = self.table.base(name, backend) + added
            source = self.table.source(name)
            quantities.append(self._quantity(name, source, predicted, float(measured)))
        return quantities

    def latency(
        self, options: Sequence[Option], backends: tuple[str, str], models: tuple[LM, LM]
    ) -> Quantity:
        """Return the seconds of a step of the original and of the plan, in the same rounds."""
        table, names = self.table, ("source", "plan")
        calls = {
            name: stepper(lm, table.length, backend)
            for name, lm, backend in zip(names, models, backends, strict=True)
        }
        samples = time_calls(calls, models[0].device, ROUNDS)
        source = summarise_times(samples["source"]).median
        ratio = summarise(
            [math.log(b / a) for a, b in zip(*(samples[n] for n in names), strict=True)]
        )
        added = sum(table.latency[backends[1]][one.key] for one in options)
        predicted = (table.steps[backends[1]] + added) / table.steps[backends[0]]
        low, high = (
            None if end is None else source * math.exp(end) for end in (ratio.low, ratio.high)
        )
        predicted, measured = source * max(predicted, 0.0), source * math.exp(ratio.mean)
        return self._quantity("latency", source, predicted, measured, low, high)

    def _quantity(
        self,
        name: str,
        source: float,
        predicted: float,
        measured: float,
        low: float | None = None,
        high: float | None = None,
    ) -> Quantity:
        return Quantity(
            name=name,
            source=source,
            bound=next((one.of(source) for one in self.limits if one.name == name), None),
            predicted=predicted,
            measured=measured,
            low=low,
            high=high,
        )


def _change_of_loss(before: RowScores, after: RowScores) -> Summary:
    return summarise([b - a for a, b in zip(before.loss, after.loss, strict=True)])


def _allocated_bytes(lm: LM, length: int, backend: str) -> int:
    state = state_for(lm, backend)
    prefill(lm, state, length)
    return state.nbytes


def rows_for(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> dict[str, list[Tensor]]:
    """Return batches of rows [B, T]: "calibration", "scoring" and "judging".

    Calibration rows are training text; validation rows alternate between the other two. Few
    documents give equal shares of the tokens, many an eighth at most.
    """
    fitted = _rows(corpus.train, tokenizer, length, tokens, MIN_ROWS)
    rest = _rows(corpus.validation, tokenizer, length, tokens, 2 * MIN_ROWS)
    parts = {"calibration": fitted, "scoring": rest[::2], "judging": rest[1::2]}
    batch = max(BATCH_TOKENS // length, 1)
    return {name: list(rows.split(batch)) for name, rows in parts.items()}


def _rows(
    documents: Documents, tokenizer: Tokenizer, length: int, tokens: int, minimum: int
) -> Tensor:
    tokens = max(tokens, minimum * length)
    characters = None  # of each document; None: all
    if documents.count:
        sample = next(iter(documents))[:SAMPLE]
        per_token = MARGIN * len(sample) / max(len(tokenizer.encode(sample)), 1)
        characters = math.ceil(per_token * tokens / min(documents.count, MIN_DOCUMENTS))
    beginnings = (document[:characters] for document in documents)
    rows = rows_of(beginnings, tokenizer, length=length, tokens=tokens)
    if len(rows) < minimum or rows.shape[1] < length:
        raise DataError(
            f"{documents.name} gives {rows.numel():,} tokens in rows, less than {minimum} rows of "
            f"{length}; give more text, or a smaller --length."
        )
    return rows
