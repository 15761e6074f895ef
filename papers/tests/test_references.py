from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice_papers.references import Reference, reference, reference_tables, references

LAYER = {  # parameters with biases, from d_model and length
    "standard": lambda d, length: 4 * (d * d + d),
    "optimised": lambda d, length: 3 * (d * d + d),
    "efficient": lambda d, length: 2 * (d * d + d),
    "super_attention": lambda d, length: 2 * (d * d + d) + length * length + length,
}


def every_row() -> list[Reference]:
    rows = [
        reference(table, mechanism, heads)
        for table in reference_tables()
        for mechanism in LAYER
        for heads in (1, 2, 4, 6, 8, 12)
    ]
    return [row for row in rows if row is not None]


def test_a_row_with_every_figure():
    assert reference("cifar100", "super_attention", 8) == Reference(
        table="cifar100",
        source="v2 table 6",
        mechanism="super_attention",
        num_heads=8,
        d_model=256,
        length=257,
        num_layers=8,
        parameters_layer=197_890,
        seconds_per_epoch=20.28,
        train_accuracy=0.5868,
        train_loss=1.50,
        train_top5=0.8651,
        test_accuracy=0.3597,
        test_loss=2.84,
        test_top5=0.6429,
    )


def test_all_tables_are_complete():
    counts = dict.fromkeys(reference_tables(), 0)
    for row in every_row():
        counts[row.table] += 1
    assert counts == {
        "mnist": 12,
        "imdb": 12,
        "amazon": 12,
        "cifar100": 16,
        "mnist_v1": 8,
        "cifar100_v1": 10,
        "imdb_v1": 8,
        "amazon_v1": 8,
        "imagenet": 4,
        "imagenet_equal": 4,
        "translation": 9,
    }


def test_every_parameter_count_follows_from_width_and_length():
    for row in every_row():
        length = row.length or 0  # mechanisms of the table without lengths do not depend on it
        assert row.parameters_layer == LAYER[row.mechanism](row.d_model, length), row


@pytest.mark.parametrize(("mechanism", "heads"), [("gqa", 4), ("standard", 3), ("super", 4)])
def test_what_is_not_printed_is_none(mechanism, heads):
    assert reference("mnist", mechanism, heads) is None


def test_an_unknown_table_is_refused():
    with pytest.raises(ConfigError, match="minst"):
        reference("minst", "standard", 1)


@pytest.mark.parametrize(
    ("task", "recipe", "table"),
    [
        ("mnist", "mnist_v2", "mnist"),
        ("mnist", "mnist_vit_v1", "mnist_v1"),
        ("imdb", "imdb", "imdb"),
        ("imdb", "imdb_v1", "imdb_v1"),
        ("imdb", "imdb_v2", "imdb"),
        ("digits", "digits_vit", None),
        ("digits", "digits_v1", None),
    ],
)
def test_the_table_of_a_task(task, recipe, table):
    assert {row.table for row in references(task, recipe).values()} == ({table} if table else set())
