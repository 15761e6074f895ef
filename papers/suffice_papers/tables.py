"""Every table and figure of the three versions of the paper, by its name here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffice.comparison.cost_to_target import geometric
from suffice.comparison.report.sheet import ranks
from suffice.comparison.report.tables import count, loss, percent, seconds
from suffice.comparison.results import Cell
from suffice.errors import check_known
from suffice.train.recipes import SCALES, recipe
from suffice.utils.statistics import Summary, summarise
from suffice_papers.recipes import SMALL_SIZES
from suffice_papers.references import Reference
from suffice_papers.sheets import ranks_apart


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of a training, a column of a table."""

    name: str  # name of the field of a cell and of the paper's row, or of one of the cell's scores
    title: str  # head of the column
    # function from a value to text; values that are written alike share a rank
    write: Callable[[float], str]
    rising: bool = False  # whether more is better
    of_paper: str = ""  # field of the paper's row; `name` by default
    fixed: bool = False  # whether every seed gives the same value, so that there is no interval
    # whether it is a time: its mean is the geometric one, its interval above 0, and only intervals
    # that overlap no other have a rank
    time: bool = False

    def ranks(self, values: Mapping[str, float | None]) -> dict[str, int | None]:
        """Rank values by name, 1 is best; see `suffice.comparison.report.sheet.ranks`."""
        return ranks(values, self.write, rising=self.rising)

    def over(self, cells: Sequence[Cell]) -> Summary | None:
        """Summarise over the seeds; None if a cell does not have the measure, or there is none."""
        values = [cell.figure(self.name) for cell in cells]
        if not values or None in values:
            return None
        return geometric(values) if self.time else summarise(values)

    def ranks_over(self, summaries: Mapping[str, Summary | None]) -> dict[str, int | None]:
        """Rank our own rows by name, times only where they are apart."""
        if self.time:
            known = {n: s for n, s in summaries.items() if s is not None and s.low is not None}
            ends = {n: (s.low, s.high) for n, s in known.items()}
            return ranks_apart({name: ends.get(name) for name in summaries})
        return self.ranks({n: None if s is None else s.mean for n, s in summaries.items()})

    def interval(self, summary: Summary) -> str:
        """Write the spread of a mean behind it; "" where there is none."""
        if summary.low is None or self.fixed:
            return ""
        if self.time:
            return f" [{self.write(summary.low)}, {self.write(summary.high)}]"
        return f" ± {self.write((summary.high - summary.low) / 2)}"

    def theirs(self, row: Reference | None) -> float | None:
        """Return the paper's figure, None where it is not printed."""
        return None if row is None else getattr(row, self.of_paper or self.name, None)


PARAMETERS = Measure(name="parameters_layer", title="params/layer", write=count, fixed=True)
EPOCH = Measure(name="seconds_per_epoch", title="epoch", write=seconds, time=True)
TRAIN = (
    Measure(name="train_accuracy", title="train acc", write=percent, rising=True),
    Measure(name="train_loss", title="train loss", write=loss),
)
TRAIN_TOP5 = Measure(name="train_top5", title="train top-5", write=percent, rising=True)
TEST = (
    Measure(name="test_accuracy", title="test acc", write=percent, rising=True),
    Measure(name="test_loss", title="test loss", write=loss),
)
TEST_TOP5 = Measure(name="test_top5", title="test top-5", write=percent, rising=True)
BALANCED = Measure(name="balanced_accuracy", title="balanced acc", write=percent, rising=True)
BLEU = Measure(name="bleu", title="BLEU", write="{:.1f}".format, rising=True, of_paper="test_bleu")
PERPLEXITY = Measure(name="perplexity", title="perplexity", write="{:.2f}".format)
MODEL = Measure(name="parameters_model", title="params", write=count, fixed=True)

CLASSES = (PARAMETERS, EPOCH, *TRAIN, *TEST)
MANY_CLASSES = (PARAMETERS, EPOCH, *TRAIN, TRAIN_TOP5, *TEST, TEST_TOP5)


MECHANISMS = ("standard", "optimised", "efficient", "super_attention")
BASELINE = "standard"
SEEDS = 5
TRAINED = ("differences", "curves")
HEADS = ("differences", "curves", "heads")


STAND_INS = {
    "cifar100_v1": ("cifar10_v1", "tiny_imagenet_32_v1"),
    "cifar100_v2": ("cifar10_v2", "tiny_imagenet_32_v2"),
    "imagenet_v2": ("tiny_imagenet_112_v2",),
    "imagenet_equal_params": ("tiny_imagenet_112_equal_params",),
    "amazon": ("womens_clothing",),
}
"""By the paper's recipe those of its sizes on other data; their words may be fewer."""


def stands_for(name: str) -> str | None:
    """Return the paper's recipe that a recipe replaces, None if it replaces none.

    Example:
        >>> stands_for("cifar10_v2"), stands_for("cifar100_v2")
        ('cifar100_v2', None)
    """
    return next((paper for paper, others in STAND_INS.items() if name in others), None)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table or figure."""

    name: str  # name here, such as "v2-imdb"
    title: str  # title of one line
    source: str  # version and number in the paper
    # "cells" of one recipe, "parts" of other tables, "edge" times, "maps" of the attention of other
    # tables' models
    shows: str
    recipe: str = ""  # name of the recipe of its cells
    paper: str = ""  # name of the paper's table, see `suffice_papers.references`
    mechanisms: tuple[str, ...] = MECHANISMS  # mechanisms of its rows
    heads: tuple[int, ...] = ()  # numbers of heads; each mechanism has a row for each
    seeds: int = SEEDS  # seeds of each row
    columns: tuple[Measure, ...] = ()  # columns in the paper's order
    cells_of: str = ""  # the table that owns the cells, where two tables show the same trainings
    parts: tuple[str, ...] = ()  # the tables that a summary or figure is drawn from
    figures: tuple[str, ...] = ()  # names of the figures that are drawn
    more: str = ""  # rows that the paper has of the same data, where ours are a part of it
    # name that results of the small scale are published by, where the table's own name tells the
    # paper's size
    small: str = ""
    # table of the atlas on which the learning rates of its rows are chosen; "" leaves them at the
    # recipe's
    tuned_on: str = ""
    further: int = 0  # further seeds of the baseline alone, after those of all rows

    @property
    def instead_of(self) -> str | None:
        """The paper's data that others stand in for here, None for the paper's own."""
        paper = stands_for(self.recipe)
        return None if paper is None else recipe(paper).title.partition(",")[0]

    @property
    def headline(self) -> str:
        """The title, with what stands for what."""
        return self.title + (f", in place of {self.instead_of}" if self.instead_of else "")

    @property
    def store(self) -> str:
        """The name that its results and working folder go by."""
        return self.cells_of or self.name

    def published_as(self, scale: str) -> str:
        """Return the name that results of a scale are published by."""
        return self.small if self.small and scale != SCALES[0] else self.store

    @property
    def trained(self) -> bool:
        """Whether its results are cells that were trained."""
        return self.shows == "cells"


def of_cells(
    name: str,
    title: str,
    source: str,
    recipe: str,
    paper: str,
    heads: tuple[int, ...],
    columns: tuple[Measure, ...],
    **other: Any,
) -> Table:
    """Return a table of cells; one with several numbers of heads draws them."""
    return Table(
        name=name,
        title=title,
        source=source,
        shows="cells",
        recipe=recipe,
        paper=paper,
        heads=heads,
        columns=columns,
        figures=HEADS if len(heads) > 1 else TRAINED,
        **other,
    )


REVIEWS = (*CLASSES, BALANCED)

# fmt: off
FIRST_VERSION = (
    of_cells("v1-table1", "MNIST, first version", "v1 table 1",
             "mnist_v1", "mnist_v1", (1, 2, 4), CLASSES),
    of_cells("v1-table2", "CIFAR100, first version", "v1 table 2",
             "cifar100_v1", "cifar100_v1", (1, 2, 4, 6), MANY_CLASSES),
    of_cells("v1-cifar10", "CIFAR-10 from JPEG, first version", "v1 table 2",
             "cifar10_v1", "cifar100_v1", (1, 2, 4, 6), MANY_CLASSES),
    of_cells("v1-tiny-imagenet-32", "Tiny ImageNet at 32x32, first version", "v1 table 2",
             "tiny_imagenet_32_v1", "cifar100_v1", (1, 2, 4, 6), MANY_CLASSES),
    of_cells("v1-table3", "IMDB, first version", "v1 table 3",
             "imdb", "imdb_v1", (1, 2, 4), CLASSES, cells_of="v2-imdb"),
    of_cells("v1-table4", "Amazon reviews, first version", "v1 table 4",
             "amazon", "amazon_v1", (1, 2, 4),
             REVIEWS, cells_of="v2-amazon", more="3.65 million reviews"),
    Table(
        name="v1-edge",
        title="Seconds for 5,000 samples, first version",
        source="v1 table 5",
        shows="edge",
        paper="v1",
        heads=(1, 2, 4),
        parts=("mnist_v1", "cifar100_v1", "imdb", "amazon"),
        figures=("latency",),
    ),
)


# fmt: on
LANGUAGE = ("standard", "optimised", "efficient")
TASKS = ("v2-mnist", "v2-cifar100", "v2-imagenet", "v2-imdb", "v2-amazon", "v2-translation")
EDGE = ("mnist_v2", "cifar100_v2", "imagenet_v2", "imdb", "amazon")
LOOKED_INTO = ("v2-mnist", "v2-imdb", "v2-amazon")
EQUAL = (MODEL, *TRAIN, TRAIN_TOP5, *TEST, TEST_TOP5)


# fmt: off
_SECOND_VERSION = (
    Table(
        name="v2-table1",
        title="All tasks, each with the heads of the summaries",
        source="v2 tables 1, 2 and 3",
        shows="parts",
        parts=TASKS,
    ),
    of_cells("v2-mnist", "MNIST", "v2 table 5", "mnist_v2", "mnist", (1, 2, 4), CLASSES),
    of_cells("v2-cifar100", "CIFAR100", "v2 table 6",
             "cifar100_v2", "cifar100", (1, 2, 4, 8), MANY_CLASSES),
    of_cells("v2-cifar10", "CIFAR-10 from JPEG", "v2 table 6",
             "cifar10_v2", "cifar100", (1, 2, 4, 8), MANY_CLASSES),
    of_cells("v2-tiny-imagenet-32", "Tiny ImageNet at 32x32", "v2 table 6",
             "tiny_imagenet_32_v2", "cifar100", (1, 2, 4, 8), MANY_CLASSES),
    of_cells("v2-imagenet", "ImageNet", "v2 table 1",
             "imagenet_v2", "imagenet", (12,), MANY_CLASSES),
    of_cells("v2-tiny-imagenet", "Tiny ImageNet at 112x112", "v2 table 1",
             "tiny_imagenet_112_v2", "imagenet", (12,), MANY_CLASSES),
    of_cells("v2-imagenet-equal", "ImageNet, models of about equal size", "v2 table 7",
             "imagenet_equal_params", "imagenet_equal", (12,), EQUAL),
    of_cells("v2-tiny-imagenet-equal", "Tiny ImageNet at 112x112, models of about equal size",
             "v2 table 7", "tiny_imagenet_112_equal_params", "imagenet_equal", (12,), EQUAL),
    of_cells("v2-imdb", "IMDB", "v2 table 8", "imdb", "imdb", (1, 2, 4), CLASSES),
    of_cells("v2-amazon", "Amazon reviews", "v2 table 9",
             "amazon", "amazon", (1, 2, 4), REVIEWS, more="3.65 million reviews"),
    of_cells("v2-womens-clothing", "Reviews of women's clothing", "v2 table 9",
             "womens_clothing", "amazon", (1, 2, 4), REVIEWS),
    of_cells("v2-translation", "English to Spanish", "v2 table 10",
             "translation_es", "translation", (1, 2, 4), (PARAMETERS, EPOCH, *TRAIN, *TEST, BLEU),
             mechanisms=LANGUAGE, more="Europarl as well"),
    Table(
        name="v2-edge",
        title="Seconds for 5,000 samples",
        source="v2 table 4",
        shows="edge",
        paper="v2",
        heads=(1, 4, 8),
        parts=EDGE,
        figures=("latency",),
    ),
)

# fmt: on
STAND_IN_TABLES = tuple(  # for the papers' data of those tasks
    other.name
    for other in _SECOND_VERSION
    if stands_for(other.recipe) in {one.recipe for one in _SECOND_VERSION if one.name in TASKS}
)

_FIGURES = (
    Table(
        name="curves",
        title="Learning curves",
        source="v2 figure 1",
        shows="parts",
        parts=(*TASKS, *STAND_IN_TABLES),
        figures=("curves",),
    ),
    Table(
        name="latency",
        title="Relative latency",
        source="v3 figure 3",
        shows="edge",
        paper="v2",
        heads=(1, 4, 8),
        cells_of="v2-edge",
        parts=EDGE,
        figures=("latency",),
    ),
    Table(
        name="heads",
        title="Number of heads",
        source="v2 tables 5, 6, 8, 9 and 10",
        shows="parts",
        parts=(*TASKS, *STAND_IN_TABLES),
        figures=("heads",),
    ),
    Table(
        name="attention-maps",
        title="What trained models look at",
        source="of no version",
        shows="maps",
        parts=LOOKED_INTO,
        figures=("maps",),
    ),
    *(
        Table(
            name=f"attention-maps-{part.partition('-')[2]}",
            title=f"What the models of {part} look at",
            source="of no version",
            shows="maps",
            parts=(part,),
            figures=("maps",),
        )
        for part in LOOKED_INTO
    ),
    *(
        of_cells(
            f"scaling-{size}m",
            f"Amazon reviews, {size}M parameters (small: {SMALL_SIZES[size]})",
            "v3 figures 4 and 8",
            f"amazon_scaling_{size}m",
            "",
            (4,),
            (MODEL, *REVIEWS),
            small=f"scaling-{SMALL_SIZES[size].lower()}",
        )
        for size in SMALL_SIZES
    ),
    Table(
        name="scaling",
        title="Amazon reviews, 5M to 25M parameters (small: 0.11M to 0.56M)",
        source="v3 figures 4 and 8",
        shows="parts",
        parts=tuple(f"scaling-{size}m" for size in SMALL_SIZES),
        figures=("scaling",),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (*FIRST_VERSION, *_SECOND_VERSION, *_FIGURES)
}


def table(name: str) -> Table:
    """Return a table by name.

    Raises:
        ConfigError: for an unknown name.

    Example:
        >>> table("v2-imdb").source
        'v2 table 8'
    """
    check_known("table", name, TABLES)
    return TABLES[name]
