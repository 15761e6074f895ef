from __future__ import annotations

import pytest
import torch

from suffice import data
from suffice.data import IGNORE_INDEX, Dataset, Split
from suffice.data.dataset import held_out, permutation, stratified
from suffice.errors import ConfigError, DataError, MaskError, ShapeError
from suffice.testing import assert_close

# dataset


def images(count: int = 3) -> Split:
    pixels = torch.arange(count * 4, dtype=torch.uint8).reshape(count, 1, 2, 2)
    return Split(pixels, torch.arange(count))


def tokens() -> Split:
    ids = torch.tensor([[0, 1, 5], [4, 5, 6]])
    return Split(ids, torch.tensor([0, 1]), ids != 0)


def asking() -> Split:
    labels = torch.tensor([[IGNORE_INDEX, 1, 2], [0, IGNORE_INDEX, IGNORE_INDEX]])
    return Split(torch.tensor([[0, 1, 5], [4, 5, 6]]), labels)


def dataset(**changes: object) -> Dataset:
    split = images()
    options = {"train": split, "validation": split, "test": split, "num_classes": 3, **changes}
    return Dataset(name="toy", title="Toy", source="nobody", **options)


def test_take_gives_rows_in_the_order_of_the_indices():
    taken = tokens().take(torch.tensor([1, 0, 1]))
    assert len(taken) == 3
    assert taken.inputs.tolist() == [[4, 5, 6], [0, 1, 5], [4, 5, 6]]
    assert taken.labels.tolist() == [1, 0, 1]
    assert taken.valid is not None
    assert taken.valid.tolist() == [[True] * 3, [False, True, True], [True] * 3]
    assert images().take(torch.tensor([2])).valid is None


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5)])
def test_split_refuses_other_inputs(shape: tuple[int, ...]):
    with pytest.raises(ShapeError, match=r"\[N, C, H, W\].*\[N, T\]"):
        Split(torch.zeros(shape), torch.zeros(3).long())


def test_split_refuses_a_label_for_each_row_of_pixels():
    for shape in ((3, 1), (3, 1, 2, 2), ()):
        with pytest.raises(ShapeError, match=r"\[N\].*\[N, T\]"):
            Split(torch.zeros(3, 1, 2, 2), torch.zeros(shape).long())


def test_rows_say_how_many_answers_they_ask_for():
    assert asking().answers.tolist() == [2, 1]
    assert asking().take(torch.tensor([1, 0, 1])).answers.tolist() == [1, 2, 1]
    assert tokens().answers.tolist() == [1, 1]
    assert images().answers.tolist() == [1, 1, 1]


def test_split_refuses_a_row_that_asks_nothing():
    labels = torch.tensor([[0, IGNORE_INDEX], [IGNORE_INDEX, IGNORE_INDEX]])
    with pytest.raises(DataError, match="row 1 has no targets"):
        Split(torch.zeros(2, 2).long(), labels)


def test_split_refuses_a_question_at_padding():
    valid = torch.tensor([[True, True, True], [True, False, True]])
    options = asking()
    assert Split(options.inputs, options.labels, valid).answers.tolist() == [2, 1]
    with pytest.raises(DataError, match="row 0"):
        Split(options.inputs, options.labels, valid & torch.tensor([True, True, False]))


BITS = torch.ones(2, 1, 2, 2).bool()


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"labels": torch.zeros(2, dtype=torch.int32)}, ConfigError, r"torch\.int32"),
        ({"valid": BITS[:, 0, 0]}, ShapeError, r"\(2, 2\).*\(2, 3\)"),
        ({"inputs": torch.zeros(2, 1, 2, 2), "valid": BITS}, ShapeError, "none for images"),
        ({"valid": torch.ones(2, 3).long()}, MaskError, r"torch\.int64"),
    ],
)
def test_split_refuses_other_labels_and_masks(fields, error, named):
    tokens = {"inputs": torch.zeros(2, 3).long(), "labels": torch.zeros(2).long()}
    with pytest.raises(error, match=named):
        Split(**tokens | fields)


def test_prepare_normalises_images_and_leaves_tokens():
    toy = dataset(mean=2.0, std=4.0)
    prepared = toy.prepare(images(1).inputs)
    assert prepared.dtype == torch.float32
    assert prepared.flatten().tolist() == [-0.5, -0.25, 0.0, 0.25]
    ids = tokens().inputs
    assert toy.prepare(ids) is ids


def test_prepare_normalises_each_channel_by_its_own():
    toy = dataset(mean=(1.0, 2.0), std=(2.0, 4.0))
    colours = torch.tensor([5, 10], dtype=torch.uint8)[None, :, None, None].expand(3, 2, 2, 2)
    prepared = toy.prepare(colours)
    assert prepared.dtype == torch.float32
    assert prepared[:, 0].unique().tolist() == prepared[:, 1].unique().tolist() == [2.0]


@pytest.mark.parametrize("side", [1, 2, 3, 6])
def test_prepare_resizes_after_it_has_normalised(side: int):
    toy = dataset(mean=2.0, std=4.0, side=side)
    plain = dataset(mean=2.0, std=4.0).prepare(images().inputs)
    prepared = toy.prepare(images().inputs)
    assert prepared.shape == (3, 1, side, side)
    assert_close(prepared.mean(dim=(1, 2, 3)), plain.mean(dim=(1, 2, 3)), "same_math")
    if side == 2:
        assert torch.equal(prepared, plain)
    if side == 6:
        assert torch.equal(prepared[:, :, 0, 0], plain[:, :, 0, 0]), "a corner is its pixel"
        assert (prepared.diff(dim=3) > -1e-6).all(), "and it is linear between them"


def test_dataset_refuses_splits_of_different_rows():
    other = Split(torch.zeros(3, 1, 4, 4), torch.arange(3))
    with pytest.raises(ShapeError, match=r"\(1, 4, 4\)"):
        dataset(test=other)


@pytest.mark.parametrize("label", [-1, 3])
def test_dataset_refuses_labels_outside_its_classes(label: int):
    other = Split(images().inputs, torch.tensor([0, label, 1]))
    with pytest.raises(DataError, match=rf"validation holds label {label}; labels are 0 to 2"):
        dataset(validation=other)


def test_dataset_takes_tokens_that_ask_and_refuses_other_labels_there():
    split = asking()
    assert dataset(train=split, validation=split, test=split).train is split
    other = Split(split.inputs, torch.where(split.labels == 2, 3, split.labels))
    with pytest.raises(DataError, match="test holds label 3"):
        dataset(train=split, validation=split, test=other)
    other = Split(split.inputs, torch.where(split.labels == 2, -1, split.labels))
    with pytest.raises(DataError, match="test holds label -1"):
        dataset(train=split, validation=split, test=other)


@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan")])
def test_dataset_refuses_a_chance_that_is_no_accuracy(chance: float):
    assert dataset(chance=0.1).chance == 0.1
    with pytest.raises(ConfigError, match="toy: chance=.*"):
        dataset(chance=chance)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), (1.0, 0.0), (float("nan"), 1.0)])
def test_dataset_refuses_a_std_that_is_not_positive(std: float | tuple[float, ...]):
    with pytest.raises(ConfigError, match="give a positive number"):
        dataset(std=std)


def pair(**changes) -> Split:
    options = {
        "inputs": torch.zeros(2, 3, dtype=torch.int64),
        "labels": torch.zeros(2, 3, dtype=torch.int64),
        "source": torch.zeros(2, 4, dtype=torch.int64),
        "source_valid": torch.ones(2, 4, dtype=torch.bool),
        **changes,
    }
    return Split(**options)


def test_a_source_needs_a_label_for_each_token():
    assert pair().source.shape == (2, 4)
    wrong = [
        {"source": torch.zeros(3, 4, dtype=torch.int64)},
        {"source": torch.zeros(2, dtype=torch.int64)},
        {"labels": torch.zeros(2, dtype=torch.int64)},
    ]
    for changes in wrong:
        with pytest.raises(ShapeError, match=r"\[N, S\]"):
            pair(**changes)
    with pytest.raises(ShapeError, match="source_valid is given without a source"):
        pair(source=None)
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(2, 4\)"):
        pair(source_valid=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(MaskError, match="torch.int64"):
        pair(source_valid=torch.ones(2, 4, dtype=torch.int64))


def test_sources_of_the_splits_are_of_one_length():
    longer = pair(
        source=torch.zeros(2, 5, dtype=torch.int64),
        source_valid=None,
    )
    with pytest.raises(ShapeError, match="the splits' rows differ in shape"):
        Dataset(
            name="pairs",
            title="",
            source="",
            train=pair(),
            validation=pair(),
            test=longer,
            num_classes=1,
        )


# partition


def test_permutation_is_the_one_of_every_other_machine():
    assert permutation(10).tolist() == [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]


def test_held_out_rows_are_the_last_of_the_permutation():
    train_rows, out = held_out(10, 0.3)
    assert train_rows.tolist() == [2, 8, 4, 9, 1, 6, 7]
    assert out.tolist() == [3, 0, 5]


def test_stratified_cuts_every_class_in_proportion():
    labels = torch.tensor([0] * 20 + [1] * 10).roll(7)
    parts = stratified(labels, 0.6, 0.1)
    assert [labels[part].bincount().tolist() for part in parts] == [[12, 6], [2, 1], [6, 3]]
    assert parts[1].tolist() == [6, 18, 19]
    assert sorted(torch.cat(parts).tolist()) == list(range(30))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


# load


def test_load_refuses_an_unknown_task_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown task 'mnits'"):
        data.load("mnits")


def test_load_refuses_an_unknown_option_with_the_nearest():
    with pytest.raises(
        ConfigError,
        match="'mnist'.*'sise'",
    ):
        data.load("mnist", sise=28)
