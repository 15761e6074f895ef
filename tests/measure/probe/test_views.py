from __future__ import annotations

import torch

from suffice.data import IGNORE_INDEX, load
from suffice.data.synthetic import KEY
from suffice.measure.probe.tasks import views


def test_copies_are_probed_as_trained_and_longer():
    task = load("copy", rows=64)
    trained, longer = views(task)
    assert trained.split is task.test
    for view, low, high in ((trained, 8, 12), (longer, 13, 16)):
        counts = view.split.answers
        assert (int(counts.min()), int(counts.max())) == (low, high)
        assert view.nearest == low
        assert view.split.inputs.shape[1] == 32
        assert int(view.split.inputs.max()) < task.num_classes


def test_depths_part_the_rows_by_how_far_back_the_key_stands():
    task = load("passkey", rows=64, length=36, decoys=1)
    by_depth = views(task)
    assert [view.cache_tokens for view in by_depth] == [None] * 4 + [8] * 4
    assert sum(len(view.split) for view in by_depth[:4]) == len(task.test)
    last = -1
    for view, rolled in zip(by_depth[:4], by_depth[4:], strict=True):
        assert rolled.split is view.split
        assert rolled.name == f"{view.name}, 8 kept"
        low, high = map(int, view.name.partition(" ")[0].split("-"))
        assert last < low <= high
        last = high
        for row, labels in zip(view.split.inputs, view.split.labels, strict=True):
            first = int((labels != IGNORE_INDEX).nonzero()[0])
            at = int((row == KEY).nonzero()[0])
            back = first - (at + 1)
            assert low <= back <= high
            assert view.nearest == low
            assert int(row[first - back]) == int(labels[first])


def test_shuffled_answers_are_those_of_the_row_and_hardly_ever_right():
    task, other, again = (load("mqar", rows=300, shuffled=change) for change in (False, True, True))
    for part in ("train", "validation", "test"):
        was, now = getattr(task, part), getattr(other, part)
        assert torch.equal(now.inputs, was.inputs)
        asked = was.labels != IGNORE_INDEX
        assert torch.equal(asked, now.labels != IGNORE_INDEX)
        before, after = (x.labels[asked].view(len(was), -1) for x in (was, now))
        assert torch.equal(before.sort().values, after.sort().values)
        assert 0.08 < float((before == after).double().mean()) < 0.17, "1 of 8"
    assert torch.equal(again.test.labels, other.test.labels)


def test_the_whole_test_part_is_one_view():
    for name, nearest in (("mqar", 1), ("induction", 8)):
        task = load(name, rows=64)
        (view,) = views(task)
        assert (view.name, view.nearest, view.cache_tokens) == ("", nearest, None)
        assert view.split is task.test
