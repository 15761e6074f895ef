from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from suffice.data.dataset import Dataset, Split
from suffice.errors import ConfigError, DataError
from suffice.train import evaluate

from .cases import Tiny, images, tokens


class Fixed(nn.Module):
    """Logits that are the inputs themselves."""

    def forward(self, inputs, valid=None):
        return inputs.flatten(1)


def table(logits, labels):
    split = Split(torch.tensor(logits)[:, None, None, :], torch.tensor(labels))
    classes = len(logits[0])
    return Dataset(
        name="table",
        title="",
        source="",
        train=split,
        validation=split,
        test=split,
        num_classes=classes,
    )


def test_loss_and_accuracy_equal_the_formula():
    logits, labels = [[2.0, 0.0, -1.0], [0.5, 0.5, 3.0], [0.0, 1.0, 0.0]], [0, 1, 1]
    dataset = table(logits, labels)
    losses = [
        math.log(sum(map(math.exp, row))) - row[y] for row, y in zip(logits, labels, strict=True)
    ]
    score = evaluate(Fixed(), dataset, dataset.test)
    assert score.loss == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert score.accuracy == pytest.approx(2 / 3)
    assert score.top5 is None
    assert score.count == 3


def test_top5_counts_labels_among_the_five_largest():
    row = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    dataset = table([row] * 4, [0, 4, 5, 5])
    score = evaluate(Fixed(), dataset, dataset.test)
    assert (score.accuracy, score.top5) == (0.25, 0.5)


@pytest.mark.parametrize("dataset", [images(test=11), tokens(test=11)], ids=["images", "tokens"])
def test_the_batch_size_does_not_matter(dataset):
    model = Tiny(dropout=0.5, words=10 if dataset.name == "tokens" else 0)
    whole = evaluate(model, dataset, dataset.test)
    split = dataset.test
    logits = model.eval()(dataset.prepare(split.inputs), valid=split.valid)
    assert whole.loss == pytest.approx(
        nn.functional.cross_entropy(logits, split.labels).item(), rel=1e-6
    )
    for size in (1, 4, 11):
        score = evaluate(model, dataset, split, batch_size=size)
        assert score.loss == pytest.approx(whole.loss, rel=1e-6)
        assert (score.accuracy, score.top5) == (whole.accuracy, whole.top5)


def test_training_flags_come_back_one_by_one_even_after_an_error():
    dataset = images()
    model = Tiny(dropout=0.5)
    model.hidden.eval()
    flags = [module.training for module in model.modules()]
    evaluate(model, dataset, dataset.test)
    assert [module.training for module in model.modules()] == flags
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(model, dataset, Split(torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.int64)))
    assert [module.training for module in model.modules()] == flags
    assert model.training
    assert not model.hidden.training


def test_an_empty_split_is_refused():
    dataset = images(test=0)
    with pytest.raises(DataError, match="a split of images has no rows"):
        evaluate(Tiny(), dataset, dataset.test)


def test_a_batch_size_below_one_is_refused():
    dataset = images()
    with pytest.raises(ConfigError, match="batch_size=0; give an integer >= 1"):
        evaluate(Tiny(), dataset, dataset.test, batch_size=0)
