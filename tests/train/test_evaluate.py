from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from suffice.data.dataset import IGNORE_INDEX, Dataset, Split
from suffice.errors import ConfigError, DataError, ShapeError
from suffice.train import Training, evaluate

from .cases import Each, Tiny, asking, images, pairs, tokens, translator

# evaluate


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
    single = evaluate(model, dataset, dataset.test)
    split = dataset.test
    logits = model.eval()(dataset.prepare(split.inputs), valid=split.valid)
    assert single.loss == pytest.approx(
        nn.functional.cross_entropy(logits, split.labels).item(), rel=1e-6
    )
    for size in (1, 4, 11):
        score = evaluate(model, dataset, split, batch_size=size)
        assert score.loss == pytest.approx(single.loss, rel=1e-6)
        assert (score.accuracy, score.top5) == (single.accuracy, single.top5)


def test_a_score_counts_labelled_tokens_alone():
    dataset, model = asking(test=11), Each(words=10)
    logits, labels = model.eval()(dataset.test.inputs), dataset.test.labels
    summed, right, near, count = 0.0, 0, 0, 0
    for row in range(11):
        for token in range(5):
            label = labels[row, token].item()
            if label == IGNORE_INDEX:
                continue
            scores = logits[row, token].tolist()
            summed += math.log(sum(map(math.exp, scores))) - scores[label]
            place = sum(other > scores[label] for other in scores)
            right, near, count = right + (place < 1), near + (place < 5), count + 1
    assert 11 < count < 55
    for size in (1, 4, 11):
        score = evaluate(model, dataset, dataset.test, batch_size=size)
        assert score.loss == pytest.approx(summed / count, rel=1e-6)
        assert score.accuracy == pytest.approx(right / count)
        assert score.top5 == pytest.approx(near / count)
        assert score.count == count


class Once(Each):
    """One answer for a row, whatever it asks."""

    def forward(self, inputs, valid=None):
        return super().forward(inputs, valid).mean(dim=1)


@pytest.mark.parametrize(
    ("model", "dataset", "shapes"),
    [
        (Once(words=10), asking(), r"\[7, 6\]; legal: \[7, 5, \*\]"),
        (Each(words=10), tokens(), r"\[7, 5, 6\]; legal: \[7, \*\]"),
    ],
)
def test_a_model_that_answers_elsewhere_is_refused(model, dataset, shapes):
    with pytest.raises(ShapeError, match=f"logits has shape {shapes}"):
        evaluate(model, dataset, dataset.test)


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
    with pytest.raises(ConfigError, match="batch_size=0"):
        evaluate(Tiny(), dataset, dataset.test, batch_size=0)


# reading


def settings(**changes) -> Training:
    return Training(**{"epochs": 3, "batch_size": 6, "learning_rate": 0.02, **changes})


def test_the_loss_is_over_the_labelled_tokens_of_the_translation():
    data, model = pairs(), translator().eval()
    split = data.test
    logits = model(split.source, split.inputs, split.source_valid, split.valid)
    labelled = split.labels != IGNORE_INDEX
    score = evaluate(model, data, split, batch_size=3)
    expected = F.cross_entropy(logits[labelled], split.labels[labelled])
    assert score.loss == pytest.approx(expected.item(), rel=1e-6)
    assert score.accuracy == pytest.approx(
        (logits.argmax(-1) == split.labels)[labelled].float().mean().item()
    )
    assert score.count == int(labelled.sum())


def test_padding_of_the_source_does_not_matter():
    data, model = pairs(), translator().eval()
    split = data.test
    noisy = torch.where(split.source_valid, split.source, 8)
    other = Split(split.inputs, split.labels, split.valid, noisy, split.source_valid)
    first, second = (evaluate(model, data, rows) for rows in (split, other))
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
