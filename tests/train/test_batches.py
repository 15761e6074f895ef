from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.data.dataset import Split
from suffice.models import ClassifierConfig
from suffice.train import loop as module
from suffice.train.augment import draw_shifts, shift
from suffice.train.distributed import Processes
from suffice.train.loop import Batches, fit
from suffice.train.settings import Training, generator

from .cases import asking, images, tokens


def build(dataset, *, size=5, seed=0, rank=0, world=1, augment=None, by_length=False):
    training = Training(epochs=1, batch_size=size, learning_rate=0.1, augment=augment)
    return Batches(
        dataset,
        training,
        seed=seed,
        processes=Processes(rank, world),
        device=torch.device("cpu"),
        by_length=by_length,
    )


def test_every_row_comes_once_in_an_order_of_seed_and_epoch():
    dataset = images(train=23)
    batches = build(dataset, size=5)
    yielded = list(batches.epoch(1))
    assert [len(b.data.labels) for b in yielded] == [5, 5, 5, 5, 3]
    assert len(batches) == 5
    order = batches.order(1)
    assert torch.equal(order.sort().values, torch.arange(23))
    assert torch.equal(torch.cat([b.data.labels for b in yielded]), dataset.train.labels[order])
    expected = (dataset.train.inputs[order].float() - 40.0) / 50.0
    assert torch.equal(torch.cat([b.data.inputs.inputs for b in yielded]), expected)
    assert torch.equal(order, build(dataset, size=7).order(1))
    assert not torch.equal(order, batches.order(2))
    assert not torch.equal(order, build(dataset, seed=1).order(1))
    assert [b.weight for b in yielded] == [1 / 5] * 4 + [1 / 3]


def test_tokens_carry_their_valid_rows():
    dataset = tokens(train=8)
    batches = build(dataset, size=8)
    (batch,) = batches.epoch(4)
    assert torch.equal(batch.data.inputs.valid, dataset.train.valid[batches.order(4)])
    assert torch.equal(batch.data.inputs.inputs, dataset.train.inputs[batches.order(4)])
    assert batch.data.inputs.inputs.dtype == torch.int64


def test_texts_of_similar_length_share_a_batch_that_ends_with_its_longest():
    dataset = tokens(train=203)
    split, batches = dataset.train, build(dataset, size=10, by_length=True)
    order, lengths = batches.order(1), dataset.train.valid.sum(dim=1)
    assert torch.equal(order.sort().values, torch.arange(203))
    assert not torch.equal(order, batches.order(2))
    longest = []
    for batch, rows in zip(batches.epoch(1), order.split(10), strict=True):
        width = int(lengths[rows].max())
        inputs = batch.data.inputs
        assert torch.equal(inputs.inputs, split.inputs[rows][:, :width])
        assert torch.equal(inputs.valid, split.valid[rows][:, :width])
        assert torch.equal(batch.data.labels, split.labels[rows])
        longest.append(width)
    assert sum(longest) < 1.1 * float(lengths.float().mean()) * len(longest)
    assert longest[:-1] != sorted(longest[:-1])  # no epoch goes from short to long


def test_every_process_cuts_a_batch_at_the_same_length():
    split = tokens(train=40)
    ranks = [build(split, size=8, rank=r, world=3, by_length=True).epoch(2) for r in range(3)]
    single = build(split, size=8, by_length=True).epoch(2)
    for whole, *shares in zip(single, *ranks, strict=True):
        joined = torch.cat([share.data.inputs.inputs for share in shares])
        assert torch.equal(joined, whole.data.inputs.inputs)


@pytest.mark.parametrize("reads_padding", [False, True])
def test_only_a_model_that_reads_padding_is_trained_on_it(reads_padding):
    dataset, widths = tokens(train=40), []
    sizes = {"vocabulary_size": 10, "length": 5, "num_classes": 6, "depth": 1, "mlp_width": 8}
    config = ClassifierConfig(d_model=8, reads_padding=reads_padding, **sizes)
    model = config.build(preset("standard", 8, 2))

    def note(module, inputs):
        if module.training:
            widths.append(inputs[0].shape[1])

    model.register_forward_pre_hook(note)
    fit(model, dataset, Training(epochs=2, batch_size=4, learning_rate=0.1), seed=0)
    assert len(widths) == 20
    assert (set(widths) == {5}) is reads_padding


def test_padding_on_both_sides_is_cut_and_padding_between_stays():
    valid = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    inputs = torch.arange(10).view(2, 5)
    dataset = replace(tokens(), train=Split(inputs, torch.tensor([0, 1]), valid))
    (batch,) = build(dataset, by_length=True).epoch(1)
    rows = [int(row) for row in batch.data.labels]
    assert torch.equal(batch.data.inputs.inputs, inputs[rows][:, 1:4])
    nothing = replace(dataset, train=Split(inputs, torch.tensor([0, 1]), torch.zeros_like(valid)))
    (batch,) = build(nothing, by_length=True).epoch(1)
    assert batch.data.inputs.inputs.shape == (2, 1)


def test_a_batch_weighs_its_answers():
    dataset = asking()
    batches = build(dataset, size=5)
    labelled = (dataset.train.labels >= 0).sum(dim=1)[batches.order(2)]
    assert [b.weight for b in batches.epoch(2)] == [1 / int(a.sum()) for a in labelled.split(5)]
    assert [b.weight for b in batches.epoch(2, first=3)] == [
        1 / int(a.sum()) for a in labelled.split(5)[3:]
    ]
    assert batches.answers == int(labelled.sum())
    assert build(tokens(), size=5).answers == 23


@pytest.mark.parametrize("world", [2, 3])
def test_shares_of_all_processes_weigh_the_answers_of_the_global_batch(world):
    single = build(asking(), size=7).epoch(1)
    ranks = [build(asking(), size=7, rank=r, world=world).epoch(1) for r in range(world)]
    for batch, *shares in zip(single, *ranks, strict=True):
        real = [share for share in shares if share.weight]
        assert torch.equal(torch.cat([share.data.labels for share in real]), batch.data.labels)
        assert {share.weight for share in real} == {world / int((batch.data.labels >= 0).sum())}


@pytest.mark.parametrize("first", [0, 2, 5])
def test_an_epoch_begun_later_gives_the_same_batches(first):
    batches = build(images(), augment="shift")
    single = list(batches.epoch(3))
    later = list(batches.epoch(3, first=first))
    assert len(later) == len(single) - first
    for a, b in zip(single[first:], later, strict=True):
        assert torch.equal(a.data.inputs.inputs, b.data.inputs.inputs)
        assert torch.equal(a.data.labels, b.data.labels)


def test_augmentation_is_drawn_for_the_epoch_and_applied_before_preparing():
    dataset = images(train=6)
    batches = build(dataset, size=6, seed=2, augment="shift")
    (batch,) = batches.epoch(1)
    drawn = draw_shifts(6, generator("augment", 2, 1))
    expected = dataset.prepare(shift(dataset.train.inputs[batches.order(1)], drawn))
    assert torch.equal(batch.data.inputs.inputs, expected)
    assert not torch.equal(
        batch.data.inputs.inputs, dataset.prepare(dataset.train.inputs[batches.order(1)])
    )


@pytest.mark.parametrize("world", [2, 3])
def test_shares_of_all_processes_make_the_global_batch(world):
    dataset = images(train=22)
    single = list(build(dataset, size=7, augment="shift").epoch(1))
    ranks = [
        list(build(dataset, size=7, rank=r, world=world, augment="shift").epoch(1))
        for r in range(world)
    ]
    for index, batch in enumerate(single):
        shares = [rank[index] for rank in ranks]
        real = [share for share in shares if share.weight]
        assert torch.equal(
            torch.cat([share.data.inputs.inputs for share in real]), batch.data.inputs.inputs
        )
        assert torch.equal(torch.cat([share.data.labels for share in real]), batch.data.labels)
        assert {share.weight for share in real} == {world / len(batch.data.labels)}
        offset = 0
        for share in real:
            assert share.rows == (offset, len(batch.data.labels))
            offset += len(share.data.labels)


def test_an_empty_share_is_one_row_of_no_weight():
    shares = [list(build(images(train=1), rank=r, world=3).epoch(1))[0] for r in range(3)]
    assert [share.weight for share in shares] == [0.0, 0.0, 3.0]
    assert all(len(share.data.labels) == 1 and share.rows == (0, 1) for share in shares)


@pytest.mark.parametrize("augment", [None, "shift"])
def test_a_large_split_moves_batch_by_batch(monkeypatch, augment):
    """The device of this test holds no numbers, so what lies on it is seen."""
    dataset, device = images(train=12), torch.device("meta")
    single = sum(t.nbytes for t in (dataset.train.inputs, dataset.train.labels))
    training = Training(epochs=1, batch_size=5, learning_rate=0.1, augment=augment)
    options = {"seed": 0, "processes": Processes(0, 1), "device": device}
    for limit, place in ((single, "meta"), (single - 1, "cpu")):
        monkeypatch.setattr(module, "MAX_DEVICE_BYTES", limit)
        batches = Batches(dataset, training, **options)
        assert batches._inputs.inputs.device.type == batches._labels.device.type == place
        for batch in batches.epoch(1):
            assert batch.data.inputs.inputs.device.type == batch.data.labels.device.type == "meta"


def test_batches_do_not_depend_on_the_device_of_the_split(monkeypatch):
    def yielded(dataset, **words):
        result = list(build(dataset, **words).epoch(3, first=1))
        return [(*b.data, b.rows, b.weight) for b in result]

    for dataset, words in ((images(), {"augment": "shift"}), (asking(), {"world": 2, "rank": 1})):
        before = yielded(dataset, **words)
        monkeypatch.setattr(module, "MAX_DEVICE_BYTES", 0)
        for (reading, labels, *rest), (other, same, *others) in zip(
            before, yielded(dataset, **words), strict=True
        ):
            assert torch.equal(reading.inputs, other.inputs)
            assert torch.equal(labels, same)
            assert rest == others
        monkeypatch.undo()
