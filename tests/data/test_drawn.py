from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from suffice.data import Split, load, synthetic
from suffice.errors import ConfigError

NAMES = ("mqar", "induction", "passkey", "copy", "two_hop")
# of the tokens and labels of every part, int64; other rows would make other results
DIGESTS = {
    "mqar": "c69c2d75057e9757",
    "induction": "8c2cd840cba7303c",
    "passkey": "b4e21249a390ba15",
    "copy": "38fde4d1bcdc938c",
    "two_hop": "ef4a2d9dd511c0c2",
}


def parts(dataset):
    return {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}


@pytest.fixture(scope="module", params=NAMES)
def task(request):
    return load(request.param)


def test_the_sizes_are_as_documented(task):
    assert [len(split) for split in parts(task).values()] == [8_192, 512, 1_024]
    assert "8,192 training rows, 512 for validation, 1,024 for" in " ".join(
        load.__globals__["TASKS"][task.name].__doc__.split()
    )
    assert "drawn at random, after " in task.source
    for split in parts(task).values():
        assert split.inputs.dtype == split.labels.dtype == torch.int64
        assert split.valid is None
        assert int(split.inputs.min()) >= 0
        assert int(split.inputs.max()) < task.num_classes


def test_no_row_is_in_two_parts_or_twice(task):
    rows = torch.cat([split.inputs for split in parts(task).values()])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 9_728


def test_rows_are_the_same_everywhere(task):
    digest = hashlib.sha256()
    for split in parts(task).values():
        digest.update(split.inputs.numpy().tobytes() + split.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[task.name]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_a_function_of_its_seed_alone(name):
    np.random.seed(3)
    torch.manual_seed(3)
    one, again = load(name, rows=40), load(name, rows=60)
    other = load(name, rows=40, seed=1)
    for part in ("validation", "test"):
        here, there, elsewhere = (parts(task)[part] for task in (one, again, other))
        assert torch.equal(here.inputs, there.inputs), "the size of train does not matter"
        assert torch.equal(here.labels, there.labels)
        assert not torch.equal(here.inputs, elsewhere.inputs)
    assert len(one.train) == 40
    assert len(again.train) == 60


@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_are_no_counts_are_refused(name):
    with pytest.raises(ConfigError, match=rf"{name}: rows=0; give whole numbers of at least 1"):
        load(name, rows=0)
    with pytest.raises(ConfigError, match=rf"{name}: seed=-1; give whole numbers of at least 0"):
        load(name, seed=-1)
    with pytest.raises(ConfigError, match=rf"{name}: rows=True; give whole numbers"):
        load(name, rows=True)


def test_too_few_different_rows_are_refused():
    told = "mqar: a row of validation is one of train too, so few different rows do these sizes"
    with pytest.raises(ConfigError, match=told):
        load("mqar", pairs=1, keys=2, values=2)


def test_subsets_are_in_random_order_without_repetition():
    found = synthetic.subsets(synthetic.stream("a", "b", 0), 4_000, of=3, size=2)
    kinds, counts = np.unique(found, axis=0, return_counts=True)
    assert kinds.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert counts.min() > 600


def test_streams_differ_by_task_part_and_seed():
    keys = [("a", "b", 0), ("c", "b", 0), ("a", "d", 0), ("a", "b", 1)]
    assert len({synthetic.stream(*key).randint(2**31) for key in keys}) == 4


def test_facts_are_handed_on():
    def draw(part, random, count):
        tokens = torch.from_numpy(random.permutation(10**6)[: 2 * count].reshape(count, 2)).long()
        return Split(tokens, torch.zeros(count).long())

    task = synthetic.drawn(
        "toy", draw, rows=3, seed=0, num_classes=5, title="Toy", source="nobody", chance=0.2
    )
    assert (task.name, task.title, task.chance, task.num_classes) == ("toy", "Toy", 0.2, 5)
    assert [len(split) for split in parts(task).values()] == [3, 512, 1_024]
