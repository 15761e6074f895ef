"""Evidence of quality: finished comparisons with Standard, the package's and the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from suffice.choose.candidates import Base, Candidate, task_of
from suffice.choose.request import Request
from suffice.comparison.metrics import METRICS
from suffice.comparison.plan import FILE as PLAN
from suffice.comparison.plan import MARGIN, read_plan
from suffice.comparison.recall import RECALL, UNSOLVED, Solved, recalls
from suffice.comparison.resolution import EVIDENCE
from suffice.comparison.results import Results, read_results
from suffice.comparison.sentence import count_heads, decision, interval
from suffice.comparison.sufficiency import FAILS, FIRST, SUFFICES, UNDECIDED
from suffice.comparison.verdict import judge
from suffice.errors import ConfigError
from suffice.models.composition import STANDARD, Composition
from suffice.train.recipes import Recipe, recipe
from suffice.train.recipes.own_data import restored
from suffice.utils.files import packaged

RESULTS = "results.json"  # in the folder of a comparison
OUTCOMES = ("suffices", "baseline", "undecided")
"""Outcomes of a verdict about quality; the others say why it cannot be judged."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One finished comparison of a composition with Standard."""

    source: str  # file or folder of the results
    title: str  # title of the recipe
    task: str  # see `Request`
    tokens: int  # tokens or patches of an input
    parameters: int  # of the model with Standard
    recalls: bool  # whether its data ask for recall
    margin: float  # loss of accuracy that is acceptable, a fraction
    num_heads: int  # query heads of both
    mechanism: str  # name of the composition
    seeds: int  # seeds that both were trained from
    # difference in test accuracy, in points with its interval; of recall, how many seeds solve it
    difference: str
    verdict: str  # "suffices", "does not suffice" or "undecided" and what would decide
    own: bool = False  # whether the user brought it

    @property
    def sentence(self) -> str:
        word, _, why = self.verdict.partition(": ")
        margin = "" if self.recalls else f" at {METRICS['accuracy'].margin(self.margin)} points"
        size = f"{self.tokens:,} tokens, {self.parameters / 1e6:.2g}M parameters"
        return (
            f"{word}{margin}{f' ({why})' * bool(why)}: {self.difference}, {self.seeds} seeds, "
            f"{count_heads(self.num_heads)}, {size}; {self.title} ({self.source})"
        )


SHARED = ("source", "title", "task", "tokens", "parameters", "recalls", "margin", "num_heads")
SINGLE = ("mechanism", "seeds", "difference", "verdict")


def read_evidence() -> Iterator[Evidence]:
    """Yield the comparisons that come with the package."""
    for table in packaged(*EVIDENCE)["comparisons"]:
        for row in table["rows"]:
            shared = {name: table[name] for name in SHARED}
            yield Evidence(**shared, **dict(zip(SINGLE, row, strict=True)))


def evidence_of(
    results: Results,
    chosen: Recipe,
    source: str,
    margin: float,
    *,
    own: bool = False,
    together: bool = True,
) -> Iterator[Evidence]:
    """Yield what a comparison shows of each composition; nothing where quality cannot be judged.

    If `together`, intervals allow for a choice among all of its compositions.
    """
    shown = _solved if chosen.training.enough is not None else _compared
    for mechanism, heads, seeds, difference, verdict in shown(results, chosen, margin, together):
        cells = results.select(results.baseline, heads) or results.cells
        yield Evidence(
            source=source,
            title=results.title,
            task=task_of(chosen.model),
            tokens=chosen.model.length,
            parameters=round(median(cell.parameters_model for cell in cells)),
            recalls=chosen.task in RECALL,
            margin=margin,
            num_heads=heads,
            mechanism=mechanism,
            seeds=seeds,
            difference=difference,
            verdict=verdict,
            own=own,
        )


_Shown = Iterator[tuple[str, int, int, str, str]]


def _solved(results: Results, chosen: Recipe, *_: Any) -> _Shown:
    for mechanism, heads in results.pairs():
        solved, baseline = (
            Solved.of(results.select(name, heads), chosen.training.enough)
            for name in (mechanism, results.baseline)
        )
        word = recalls(solved, baseline)
        enough = min(solved.seeds, baseline.seeds) >= FIRST
        if mechanism != results.baseline and enough and word != UNSOLVED:
            text = f"solved by {solved}, by Standard in {baseline.count} of {baseline.seeds}"
            yield mechanism, heads, solved.seeds, text, word


def _compared(results: Results, _: Recipe, margin: float, together: bool) -> _Shown:
    def group(pair: tuple[str, int]) -> object:
        return pair[1] if together else pair

    pairs = [pair for pair in results.pairs() if pair[0] != results.baseline]
    for _, members in groupby(sorted(pairs, key=lambda pair: pair[1]), key=group):
        compared = list(members)
        if not (cells := list(results.select(results.baseline, compared[0][1]))):
            continue
        cells += [cell for pair in compared for cell in results.select(*pair)]
        metric = None if results.better else "accuracy"
        verdict = judge(replace(results, cells=tuple(cells)), margin=margin, metric=metric)
        for one in verdict.comparisons if verdict.outcome in OUTCOMES else ():
            if one.difference and one.sufficiency in (SUFFICES, FAILS, UNDECIDED):
                seeds, difference = len(one.pairing.seeds), interval(one.difference)
                yield one.mechanism, one.num_heads, seeds, difference, decision(one)


class Library:
    """The finished comparisons of a request's task: the user's and the package's."""

    def __init__(self, request: Request, base: Base) -> None:
        self.request = request
        self.unheard: dict[str, str] = {}  # why the user's folders are not evidence
        own = [one for folder in request.results for one in self._own(folder)]
        theirs = [one for one in read_evidence() if one.task == request.task]
        self.evidence: dict[str, list[Evidence]] = {}
        self.same: dict[object, list[str]] = {}  # names that compute the same at these sizes
        for one in (*own, *theirs):
            self.evidence.setdefault(one.mechanism, []).append(one)
        for name in self.evidence:
            with suppress(ConfigError):  # not legal at these sizes
                identity = Candidate.of(Composition.parse(name), base).identity
                self.same.setdefault(identity, []).append(name)

    def find(self, candidate: Candidate) -> tuple[Evidence, ...]:
        """Return the evidence of a composition, under whatever name: the user's alone if any."""
        names = dict.fromkeys((candidate.name, *self.same.get(candidate.identity, ())))
        return _deciding([one for name in names for one in self.evidence.get(name, ())])

    def about(self, candidate: Candidate) -> tuple[str, tuple[Evidence, ...]]:
        """Return the evidence of a composition, else of its trained part or mechanism, by name."""
        whole = candidate.composition
        if found := self.find(candidate):
            return whole.name, found
        plain = replace(whole, sinks=None, memory=None, values=None, weights=None)
        plain = replace(plain, window=None, full=None) if whole.sinks else plain
        for part in (plain, Composition(mechanism=whole.mechanism)):
            if part != whole and part.name in self.evidence:
                return part.name, _deciding(self.evidence[part.name])
        return "", ()

    def suffices(self, candidate: Candidate) -> bool:
        """Return whether the user's own comparisons show that a composition suffices.

        Standard does. Where recall is asked for, comparisons that ask for it have to show it, too.
        """
        if candidate.name == STANDARD:
            return True
        found = self.find(candidate)
        own = [one for one in found if one.own and not one.recalls]
        memories = [one for one in found if one.recalls] if self.request.recall else []
        shown = bool(own) and bool(memories or not self.request.recall)
        return shown and all(one.verdict == SUFFICES for one in (*own, *memories))

    def loss(self, candidate: Candidate) -> Evidence | None:
        """Return a comparison in which a composition does not suffice, if there is one.

        Where none was of the whole, that of its part counts, unless some layers are standard.
        """
        name, found = self.about(candidate)
        if name != candidate.name and candidate.composition.softmax:
            return None
        return next((one for one in found if self._fails(one)), None)

    def _fails(self, one: Evidence) -> bool:
        quality = self.request.quality
        asked = self.request.recall if one.recalls else quality is None or quality <= one.margin
        return asked and one.verdict == FAILS

    def _own(self, folder: str) -> Sequence[Evidence]:
        path = Path(folder) / RESULTS if Path(folder).is_dir() else Path(folder)
        results = read_results(path)
        chosen = _recipe(results, path.parent)
        margin = MARGIN if self.request.quality is None else self.request.quality
        if chosen is None:
            why = f"its recipe {results.recipe!r} with its sizes is not known here"
        elif task_of(chosen.model) != self.request.task:
            why = f"it is of task {task_of(chosen.model)}"
        elif results.baseline != STANDARD:
            why = f"its baseline is {results.baseline}, not standard"
        elif found := tuple(evidence_of(results, chosen, folder, margin, own=True)):
            return found
        else:
            why = "no verdict on quality can be made of it"
        self.unheard[folder] = why
        return ()


def _deciding(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(one for one in found if one.own) or tuple(found)


def _recipe(results: Results, folder: Path) -> Recipe | None:
    """Return the recipe of a user's comparison, with the sizes that its plan holds."""
    try:
        named = recipe(results.recipe, scale=results.scale)
        if (folder / PLAN).exists():
            return restored(named, read_plan(folder).recipe)
    except ConfigError:  # of another version
        return None
    return named if results.title == named.title else None
