"""The tables of the first version of the paper."""

from __future__ import annotations

from suffice.reproduce.column import BALANCED, CLASSES, MANY_CLASSES
from suffice.reproduce.table import Table, of_cells

REVIEWS = (*CLASSES, BALANCED)

FIRST_VERSION = (
    of_cells(
        "v1-table1",
        "MNIST, first version",
        "v1 table 1",
        "mnist_v1",
        "mnist_v1",
        (1, 2, 4),
        CLASSES,
    ),
    of_cells(
        "v1-table2",
        "CIFAR100, first version",
        "v1 table 2",
        "cifar100_v1",
        "cifar100_v1",
        (1, 2, 4, 6),
        MANY_CLASSES,
    ),
    of_cells(
        "v1-cifar10",
        "CIFAR-10 from JPEG, first version",
        "v1 table 2",
        "cifar10_v1",
        "cifar100_v1",
        (1, 2, 4, 6),
        MANY_CLASSES,
    ),
    of_cells(
        "v1-tiny-imagenet-32",
        "Tiny ImageNet at 32x32, first version",
        "v1 table 2",
        "tiny_imagenet_32_v1",
        "cifar100_v1",
        (1, 2, 4, 6),
        MANY_CLASSES,
    ),
    of_cells(
        "v1-table3",
        "IMDB, first version",
        "v1 table 3",
        "imdb",
        "imdb_v1",
        (1, 2, 4),
        CLASSES,
        cells_of="v2-imdb",
    ),
    of_cells(
        "v1-table4",
        "Amazon reviews, first version",
        "v1 table 4",
        "amazon",
        "amazon_v1",
        (1, 2, 4),
        REVIEWS,
        cells_of="v2-amazon",
        more="3.65 million reviews",
    ),
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
