"""Every table and figure of the three versions of the paper, by the name it goes by here."""

from __future__ import annotations

from suffice.errors import unknown
from suffice.recipes import stands_for
from suffice.reproduce.column import (
    BLEU,
    CLASSES,
    EPOCH,
    MANY_CLASSES,
    MODEL,
    PARAMETERS,
    PERPLEXITY,
    TEST,
    TEST_TOP5,
    TRAIN,
    TRAIN_TOP5,
)
from suffice.reproduce.first_version import FIRST_VERSION, REVIEWS
from suffice.reproduce.table import Table, of_cells

LANGUAGE = ("standard", "optimised", "efficient")
TASKS = ("v2-mnist", "v2-cifar100", "v2-imagenet", "v2-imdb", "v2-amazon", "v2-translation")
EDGE = ("mnist_v2", "cifar100_v2", "imagenet_v2", "imdb", "amazon")
LOOKED_INTO = ("v2-mnist", "v2-imdb", "v2-amazon")
SIZES = (5, 10, 15, 20, 25)  # millions of parameters
EQUAL = (MODEL, *TRAIN, TRAIN_TOP5, *TEST, TEST_TOP5)


_SECOND_VERSION = (
    Table(
        name="v2-table1",
        title="All tasks, each with the heads of the summaries",
        source="v2 tables 1, 2 and 3",
        shows="parts",
        parts=TASKS,
    ),
    of_cells("v2-mnist", "MNIST", "v2 table 5", "mnist_v2", "mnist", (1, 2, 4), CLASSES),
    of_cells(
        "v2-cifar100",
        "CIFAR100",
        "v2 table 6",
        "cifar100_v2",
        "cifar100",
        (1, 2, 4, 8),
        MANY_CLASSES,
    ),
    of_cells(
        "v2-cifar10",
        "CIFAR-10 from JPEG",
        "v2 table 6",
        "cifar10_v2",
        "cifar100",
        (1, 2, 4, 8),
        MANY_CLASSES,
    ),
    of_cells(
        "v2-tiny-imagenet-32",
        "Tiny ImageNet at 32x32",
        "v2 table 6",
        "tiny_imagenet_32_v2",
        "cifar100",
        (1, 2, 4, 8),
        MANY_CLASSES,
    ),
    of_cells(
        "v2-imagenet", "ImageNet", "v2 table 1", "imagenet_v2", "imagenet", (12,), MANY_CLASSES
    ),
    of_cells(
        "v2-tiny-imagenet",
        "Tiny ImageNet at 112x112",
        "v2 table 1",
        "tiny_imagenet_112_v2",
        "imagenet",
        (12,),
        MANY_CLASSES,
    ),
    of_cells(
        "v2-imagenet-equal",
        "ImageNet, models of about equal size",
        "v2 table 7",
        "imagenet_equal_params",
        "imagenet_equal",
        (12,),
        EQUAL,
    ),
    of_cells(
        "v2-tiny-imagenet-equal",
        "Tiny ImageNet at 112x112, models of about equal size",
        "v2 table 7",
        "tiny_imagenet_112_equal_params",
        "imagenet_equal",
        (12,),
        EQUAL,
    ),
    of_cells("v2-imdb", "IMDB", "v2 table 8", "imdb", "imdb", (1, 2, 4), CLASSES),
    of_cells(
        "v2-amazon",
        "Amazon reviews",
        "v2 table 9",
        "amazon",
        "amazon",
        (1, 2, 4),
        REVIEWS,
        more="3.65 million reviews",
    ),
    of_cells(
        "v2-womens-clothing",
        "Reviews of women's clothing",
        "v2 table 9",
        "womens_clothing",
        "amazon",
        (1, 2, 4),
        REVIEWS,
    ),
    of_cells(
        "v2-translation",
        "English to Spanish",
        "v2 table 10",
        "translation_es",
        "translation",
        (1, 2, 4),
        (PARAMETERS, EPOCH, *TRAIN, *TEST, BLEU),
        mechanisms=LANGUAGE,
        more="Europarl as well",
    ),
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

STAND_INS = tuple(  # for the papers' data of those tasks
    other.name
    for other in _SECOND_VERSION
    if stands_for(other.recipe) in {one.recipe for one in _SECOND_VERSION if one.name in TASKS}
)

_FIGURES = (
    of_cells(
        "lm",
        "A language model of characters, no experiment of the paper",
        "v3 section 4.1",
        "lm_small",
        "",
        (4,),
        (PARAMETERS, EPOCH, *TRAIN, *TEST, PERPLEXITY),
    ),
    Table(
        name="curves",
        title="Learning curves",
        source="v2 figure 1",
        shows="parts",
        parts=(*TASKS, *STAND_INS),
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
        parts=(*TASKS, *STAND_INS),
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
            f"Amazon reviews, {size}M parameters",
            "v3 figures 4 and 8",
            f"amazon_scaling_{size}m",
            "",
            (4,),
            (MODEL, *REVIEWS),
        )
        for size in SIZES
    ),
    Table(
        name="scaling",
        title="Amazon reviews, 5M to 25M parameters",
        source="v3 figures 4 and 8",
        shows="parts",
        parts=tuple(f"scaling-{size}m" for size in SIZES),
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
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]
