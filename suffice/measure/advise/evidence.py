"""Evidence of quality: finished comparisons, and a backtest of the advice on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from statistics import median

from suffice.errors import ConfigError
from suffice.measure import Comparison, Results, judge
from suffice.measure.advise.request import KINDS
from suffice.measure.plan import FILE as PLAN
from suffice.measure.plan import MARGIN, read_plan
from suffice.measure.published import published_names, read_published
from suffice.measure.recall import UNSOLVED, Solved, recalls
from suffice.measure.results import read_results
from suffice.measure.sentence import count_heads, decision, interval, margin_points
from suffice.measure.sequential import FIRST
from suffice.measure.sufficiency import FAILS, SUFFICES, UNDECIDED
from suffice.models import LMConfig
from suffice.models.composition import Composition
from suffice.recipes import ATLAS, SCALES, Recipe, recipe
from suffice.recipes.atlas import RECALL
from suffice.recipes.own_data import restored

FILE = "results.json"  # in the folder of a comparison
OUTCOMES = ("suffices", "baseline", "undecided")
"""Outcomes of a verdict that speak of quality; the others say why it cannot be told."""
MAX_DOUBLINGS = 2.0
"""A comparison is near what is asked if neither tokens nor parameters differ by more doublings."""
MIN_DATA_SETS = 2  # data sets of the package on which a composition has to suffice


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a comparison was of, and what is asked for.

    Example:
        >>> asked = Scope(tokens=64, parameters=300_000, num_heads=4)
        >>> asked.near(Scope(tokens=256, parameters=1_200_000, num_heads=4))
        True
        >>> asked.near(Scope(tokens=1024, parameters=300_000, num_heads=4))
        False
        >>> asked.near(Scope(tokens=64, parameters=300_000, num_heads=1))
        False
    """

    tokens: int  # tokens per input
    parameters: int  # parameters of the model with Standard
    num_heads: int  # query heads of each layer

    def distance(self, other: Scope) -> float:
        """Return the doublings between two scopes, as shares of the most that are near."""
        return sum(self._shares(other))

    def near(self, other: Scope) -> bool:
        """Return whether a verdict on one may stand for the other."""
        return self.num_heads == other.num_heads and max(self._shares(other)) <= 1.0

    def _shares(self, other: Scope) -> list[float]:
        return [
            abs(log2(getattr(self, name) / getattr(other, name))) / MAX_DOUBLINGS
            for name in ("tokens", "parameters")
        ]

    def __str__(self) -> str:
        size = f"{self.parameters / 1e6:.1f}M parameters"
        return f"{self.tokens:,} tokens, {size} and {count_heads(self.num_heads)}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One finished comparison of a composition with Standard."""

    source: str  # file of the results
    title: str  # title of the task
    data: str  # name of the data
    num_heads: int  # heads of both
    seeds: int  # seeds that both were trained from
    # difference in test accuracy, in points with its interval; of recall, how many seeds solve it
    difference: str
    margin: float  # loss of accuracy that is acceptable, a fraction
    verdict: str  # "suffices", "does not suffice" or "undecided" and what would decide
    own: bool = False  # whether the user brought it
    recalls: bool = False  # whether its task is drawn and asks for recall
    far: str = ""  # scope of the comparison if it is far from the request; "" if it is near

    @property
    def sentence(self) -> str:
        """All of it as a sentence."""
        return (
            f"{self.verdict} at {margin_points(self.margin)} points: {self.difference}, "
            f"{self.seeds} seeds, {count_heads(self.num_heads)}; {self.title} ({self.source})"
            + (f", far from the request: {self.far}" if self.far else "")
        )


def deciding(comparisons: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the comparisons that decide: the near ones, the user's own where there are any."""
    near = tuple(one for one in comparisons if not one.far)
    return tuple(one for one in near if one.own) or near


def suffices(comparisons: Sequence[Evidence], *, recall: bool = False) -> bool:
    """Return whether comparisons show together that a composition suffices.

    All that decide must show it, so nothing is to be corrected for their number. One of the user's
    is enough; the package's must be on `MIN_DATA_SETS` data sets, since the request's own data are
    not among them. Tasks of recall alone are not enough; with `recall` one of them is needed.
    """
    decide = deciding(comparisons)
    data = {one.data for one in decide if not one.recalls}
    if len(data) < (1 if any(one.own for one in decide) else MIN_DATA_SETS):
        return False
    memories = deciding(one for one in comparisons if one.recalls) if recall else ()
    if recall and not memories:
        return False
    return all(one.verdict == SUFFICES for one in (*decide, *memories))


def trained(composition: Composition) -> Composition:
    """Return what is trained of a composition: a window with sinks is a choice for writing, too."""
    plain = replace(composition, sinks=None, memory=None, weights=None)
    return replace(plain, window=None, full=None) if composition.sinks else plain


class Library:
    """The finished comparisons of a task with Standard, judged at a margin.

    Args:
        task: see `Request`.
        folders: folders of `suffice compare`, read in addition to the package's results.
        margin: loss of accuracy that is acceptable; None means 0.01.
        asked: requested scope, which decides whether a comparison is near or far; None treats all
            as near.
        without: data whose comparisons are left out, see `data_of`.
    """

    def __init__(
        self,
        task: str,
        folders: Sequence[str] = (),
        margin: float | None = None,
        asked: Scope | None = None,
        *,
        without: str | None = None,
    ) -> None:
        self.task, self.asked, self.without = task, asked, without
        self.margin = MARGIN if margin is None else margin
        self.unheard: dict[str, str] = {}  # why the user's folders are not evidence
        self.tables: dict[tuple[str, int], tuple[Recipe, dict[object, str | None]]] = {}
        ranked: list[tuple[tuple[bool, bool, float], str, Evidence]] = []
        for folder in folders:
            path = Path(folder)
            path = path / FILE if path.is_dir() else path
            ranked += self._read(folder, read_results(path), path.parent)
        for source, results in sorted(packaged().items(), key=_rank):
            ranked += self._read(source, results, None)
        ranked.sort(key=lambda one: one[0])
        self.evidence: dict[str, list[Evidence]] = {}
        for _, mechanism, evidence in ranked:
            self.evidence.setdefault(mechanism, []).append(evidence)

    def find(self, composition: Composition) -> tuple[Evidence, ...]:
        """Return the evidence of a composition: near, the user's first; then what is far.

        Near evidence is that of rows which compute the same, whatever their names.
        """
        evidence = list(self.evidence.get(composition.name, ()))
        if composition.of_use:
            return tuple(evidence)
        for table, (chosen, rows) in self.tables.items():
            name = rows.get(_computed(chosen, composition.name, table[1]))
            if name not in (None, composition.name):
                evidence += [e for e in self.evidence[name] if (e.source, e.num_heads) == table]
        return tuple(sorted(evidence, key=lambda one: (bool(one.far), not one.own)))

    def loss(self, composition: Composition) -> str | None:
        """Return the evidence that a composition does not suffice; None where there is none.

        Where nothing near was of the whole, that of its trained part and of its mechanism speaks:
        what does not suffice alone does not with further changes either, except where some of its
        layers are standard instead.
        """
        if decide := deciding(self.find(composition)):
            return next((one.sentence for one in decide if one.verdict == FAILS), None)
        part = trained(composition)
        if part == composition:
            part = Composition(mechanism=composition.mechanism)
        if part == composition or composition.softmax:
            return None
        loss = self.loss(part)
        return loss and (loss if loss.startswith(part.mechanism) else f"{part.name} alone {loss}")

    def _read(
        self, source: str, results: Results, folder: Path | None
    ) -> Iterator[tuple[tuple[bool, bool, float], str, Evidence]]:
        own = folder is not None
        chosen = recipe_of(results, folder)
        if chosen is None or task_of(chosen) != self.task or results.baseline != "standard":
            self._refuse(own, source, _unfit(results, chosen, self.task))
            return
        if data_of(chosen) == self.without:
            return
        said = _said(results, chosen, self.margin)
        if not said:
            self._refuse(own, source, "no verdict on quality can be made of it")
        scopes = {heads: scope_of(results, chosen, heads) for _, heads in results.pairs()}
        for (mechanism, heads), (seeds, difference, verdict) in said.items():
            scope = scopes[heads]
            near = self.asked is None or scope.near(self.asked)
            if near:
                plain = _computed(chosen, results.baseline, heads)
                _, rows = self.tables.setdefault((source, heads), (chosen, {plain: None}))
                rows.setdefault(_computed(chosen, mechanism, heads), mechanism)
            yield (
                (not near, not own, 0.0 if self.asked is None else scope.distance(self.asked)),
                mechanism,
                Evidence(
                    source=source,
                    title=results.title,
                    data=data_of(chosen),
                    num_heads=heads,
                    seeds=seeds,
                    difference=difference,
                    margin=self.margin,
                    verdict=verdict,
                    own=own,
                    recalls=chosen.task in RECALL,
                    far="" if near else str(scope),
                ),
            )
        if self.asked and not any(scope.near(self.asked) for scope in scopes.values()):
            self._refuse(own, source, f"it is of {' and '.join(map(str, scopes.values()))}")

    def _refuse(self, own: bool, source: str, why: str) -> None:
        if own:
            self.unheard[source] = why


def _unfit(results: Results, chosen: Recipe | None, task: str) -> str:
    if chosen is None:
        return f"its recipe {results.recipe!r} with its sizes is not known here"
    if task_of(chosen) != task:
        return f"it is of task {task_of(chosen)}"
    return f"its baseline is {results.baseline}, not standard"


def _rank(packaged: tuple[str, Results]) -> tuple[bool, int, int]:
    """Return the order of a comparison: the paper's size first, then most seeds and trainings."""
    _, results = packaged
    seeds = {cell.seed for cell in results.cells if cell.mechanism != results.baseline}
    return results.scale != SCALES[0], -len(seeds), -len(results.cells)


_Said = dict[tuple[str, int], tuple[int, str, str]]
"""Seeds, difference and verdict of every (mechanism, heads)."""


def _said(results: Results, chosen: Recipe, margin: float) -> _Said:
    """Return what results say; of a task of recall by the seeds that solve it."""
    if chosen.training.enough is not None:
        return _recalled(results, chosen.training.enough)
    return {
        (c.mechanism, c.num_heads): (len(c.pairing.seeds), interval(c.difference), decision(c))
        for c in comparisons(results, margin)
    }


def _recalled(results: Results, enough: float) -> _Said:
    said = {}
    for mechanism, heads in results.pairs():
        baseline = Solved.of(results.select(results.baseline, heads), enough)
        solved = Solved.of(results.select(mechanism, heads), enough)
        few = min(solved.seeds, baseline.seeds) < FIRST
        word = recalls(solved, baseline)
        if mechanism != results.baseline and not few and word != UNSOLVED:
            text = f"solved by {solved}, by Standard in {baseline.count} of {baseline.seeds}"
            said[mechanism, heads] = solved.seeds, text, word
    return said


def _computed(chosen: Recipe, mechanism: str, num_heads: int) -> object:
    """Return what is equal for rows of a recipe that compute the same; None if it is illegal."""
    try:
        return tuple(chosen.specs(mechanism, num_heads)), chosen.model_of(mechanism)
    except ConfigError:
        return None


def comparisons(results: Results, margin: float) -> tuple[Comparison, ...]:
    """Return the comparisons of results that say something of quality.

    Each number of heads is judged by itself, in the atlas each composition; what learned nothing,
    or cannot tell for another reason, is left out.
    """
    plain = {c.num_heads: results.select(results.baseline, c.num_heads) for c in results.cells}
    others = [pair for pair in results.pairs() if pair[0] != results.baseline]
    alone = results.recipe in ATLAS
    groups = (
        [[pair] for pair in others]
        if alone
        else [
            [pair for pair in others if pair[1] == heads]
            for heads in dict.fromkeys(h for _, h in others)
        ]
    )
    verdicts = (
        judge(
            replace(
                results,
                cells=(*plain[group[0][1]], *(c for p in group for c in results.select(*p))),
            ),
            margin=margin,
            metric=None if results.better else "accuracy",
        )
        for group in groups
        if plain[group[0][1]]
    )
    return tuple(
        one
        for verdict in verdicts
        if verdict.outcome in OUTCOMES
        for one in verdict.comparisons
        if one.difference and one.sufficiency in (SUFFICES, FAILS, UNDECIDED)
    )


def packaged() -> dict[str, Results]:
    """Return the comparisons that come with the package, by file."""
    # judged by cells alone: answers to single rows are not kept for all of them
    return {
        f"{name}.json": replace(content.results, rows={})
        for name in published_names()
        if (content := read_published(name)) is not None
    }


def recipe_of(results: Results, folder: Path | None = None) -> Recipe | None:
    """Return the recipe of a comparison with its sizes; None where they are not known.

    The user's comparisons may have other sizes than their recipe, which their plan holds.
    """
    try:
        named = recipe(results.recipe, scale=results.scale)
        if folder is not None and (folder / PLAN).exists():
            return restored(named, read_plan(folder).recipe)
    except ConfigError:  # of another version
        return None
    return named if folder is None or results.title == named.title else None


def task_of(chosen: Recipe) -> str:
    """Return the adviser's task of a recipe."""
    kinds = {**KINDS, "lm": LMConfig}
    return next(task for task, kind in kinds.items() if isinstance(chosen.model, kind))


def data_of(chosen: Recipe) -> str:
    """Return the name of a recipe's data, whatever the size of the model.

    Example:
        >>> data_of(recipe("lm_small"))
        'text tinyshakespeare'
    """
    return " ".join(
        map(str, (chosen.task, *filter(None, map(dict(chosen.task_options).get, DATA_OPTIONS))))
    )


DATA_OPTIONS = ("corpus", "path")  # options that choose other data


def scope_of(results: Results, chosen: Recipe, num_heads: int) -> Scope:
    """Return what a comparison with some heads was of."""
    cells = results.select(results.baseline, num_heads) or results.cells
    size = round(median(cell.parameters_model for cell in cells))
    return Scope(tokens=chosen.model.length, parameters=size, num_heads=num_heads)


MARGINS = (0.005, 0.01, 0.02, 0.05)
NONE_NAMED = "none named"


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """What would have been advised for a comparison's data, by those of other data."""

    source: str  # file of the comparison
    data: str  # data of the comparison
    margin: float  # margin that was asked for
    named: str | None  # the cheapest composition that was known to suffice; None if none was
    # verdict of the comparison: "suffices", "does not suffice" or "undecided"; "none named" where
    # Standard stays
    outcome: str


def backtests(margins: Sequence[float] = MARGINS) -> list[Backtest]:
    """Return what would have been advised for every comparison that comes with the package."""
    return [
        backtest
        for source, results in packaged().items()
        if (chosen := recipe_of(results)) is not None and chosen.task not in RECALL
        for backtest in _backtests(source, results, chosen, margins)
    ]


def _backtests(
    source: str, results: Results, chosen: Recipe, margins: Sequence[float]
) -> Iterator[Backtest]:
    heads = max(heads for _, heads in results.pairs())
    asked, data = scope_of(results, chosen, heads), data_of(chosen)
    for margin in margins:
        library = Library(task_of(chosen), (), margin, asked, without=data)
        named = _named(library, [c for c in comparisons(results, margin) if c.num_heads == heads])
        yield Backtest(
            source=source,
            data=data,
            margin=margin,
            named=named and named.mechanism,
            outcome=named.sufficiency if named else NONE_NAMED,
        )


def _named(library: Library, compared: list[Comparison]) -> Comparison | None:
    cheapest = sorted((one for one in compared if one.cheaper), key=lambda one: one.cost.order)
    known = (c for c in cheapest if suffices(library.find(Composition.parse(c.mechanism))))
    return next(known, None)
