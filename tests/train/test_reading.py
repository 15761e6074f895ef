from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from suffice.data.dataset import IGNORE_INDEX, Split
from suffice.progress import Silent
from suffice.testing import assert_close
from suffice.train import Interrupted, Training, evaluate, fit
from suffice.train.evaluate import ModelInputs

from .cases import images, pairs, translator, weights


def settings(**changes) -> Training:
    return Training(**{"epochs": 3, "batch_size": 6, "learning_rate": 0.02, **changes})


def test_a_reading_changes_every_tensor_alike():
    split = pairs(train=4).train
    first = ModelInputs.of(split).map(lambda tensor: tensor[:2])
    assert torch.equal(first.source, split.source[:2])
    assert torch.equal(first.source_valid, split.source_valid[:2])
    assert torch.equal(first.valid, split.valid[:2])
    assert torch.equal(first.inputs, split.inputs[:2])
    alone = ModelInputs.of(images(train=3).train).map(lambda tensor: tensor[1:])
    assert (len(alone.inputs), alone.valid, alone.source) == (2, None, None)


def test_the_loss_is_that_of_the_asked_tokens_of_the_translation():
    data, model = pairs(), translator().eval()
    split = data.test
    logits = model(split.source, split.inputs, split.source_valid, split.valid)
    asked = split.labels != IGNORE_INDEX
    score = evaluate(model, data, split, batch_size=3)
    wanted = F.cross_entropy(logits[asked], split.labels[asked])
    assert score.loss == pytest.approx(wanted.item(), rel=1e-6)
    assert score.accuracy == pytest.approx(
        (logits.argmax(-1) == split.labels)[asked].float().mean().item()
    )
    assert score.count == int(asked.sum())


def test_padding_of_the_source_does_not_matter():
    data, model = pairs(), translator().eval()
    split = data.test
    noisy = torch.where(split.source_valid, split.source, 8)
    other = Split(split.inputs, split.labels, split.valid, noisy, split.source_valid)
    first, second = (evaluate(model, data, one) for one in (split, other))
    assert first.loss == pytest.approx(second.loss, rel=1e-6)


def test_a_translator_learns():
    data, model = pairs(train=200), translator()
    before = evaluate(model, data, data.test).loss
    run = fit(model, data, settings(epochs=4), seed=0)
    assert run.epochs[-1].train_loss < run.epochs[0].train_loss
    assert evaluate(model, data, data.test).loss < before


class _Stop(Silent):
    """Presses Ctrl-C at a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, done: int, total: int) -> None:
        if done == self.at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


def test_a_resumed_training_of_a_translator_is_the_uninterrupted_one(tmp_path):
    data = pairs()
    whole = translator(dropout=0.1)
    wanted = fit(whole, data, settings(), seed=3)
    place = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        fit(
            translator(dropout=0.1),
            data,
            settings(),
            seed=3,
            checkpoint=place,
            progress=_Stop(6),
        )
    again = translator(seed=5, dropout=0.1)
    found = fit(again, data, settings(), seed=3, checkpoint=place, resume=True)
    assert [e.train_loss for e in found.epochs] == [e.train_loss for e in wanted.epochs]
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(again)[name]), name


def test_take_keeps_sources_beside_their_targets():
    split = pairs().train
    order = torch.tensor([5, 0])
    taken = split.take(order)
    assert torch.equal(taken.source, split.source[order])
    assert torch.equal(taken.source_valid, split.source_valid[order])
    assert_close(taken.inputs.float(), split.inputs[order].float(), "same_math")
