from __future__ import annotations

import dataclasses
import math
import os
import signal

import pytest
import torch
import torch.nn.functional as F

from suffice.data.dataset import Dataset, Split
from suffice.errors import CheckpointError, ConfigError, DataError, StateError
from suffice.testing import assert_close
from suffice.train import Interrupted, Training, evaluate, fit, load
from suffice.train.optimiser import schedule_factor
from suffice.train.settings import derive, generator

from .cases import Each, Tiny, asking, images, tokens, weights

FULL = Training(
    epochs=4,
    batch_size=5,
    learning_rate=0.02,
    weight_decay=0.05,
    warmup=0.2,
    schedule="cosine",
    clip=0.8,
    label_smoothing=0.1,
    augment="shift",
)


def settings(**changes):
    return Training(**{"epochs": 2, "batch_size": 5, "learning_rate": 0.01, **changes})


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))


def untimed(run):
    return [dataclasses.replace(epoch, seconds=0.0, cpu_seconds=0.0) for epoch in run.epochs]


class At:
    """A display that does something at one step of the run."""

    def __init__(self, step, action):
        self.at, self.action, self.texts = step, action, []

    def cell(self, description):
        raise AssertionError("fit names no cells")

    def say(self, text):
        self.texts.append(text)

    def step(self, done, total):
        self.total = total
        if done == self.at:
            self.action()


def press():
    os.kill(os.getpid(), signal.SIGINT)


# the arithmetic


def test_fit_equals_a_plain_loop_written_out():
    dataset, training = images(), dataclasses.replace(FULL, augment=None)
    model = Tiny(dropout=0.3)
    run = fit(model, dataset, training, seed=3)

    other = Tiny(dropout=0.3)
    matrices = [p for p in other.parameters() if p.dim() > 1]
    vectors = [p for p in other.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    )
    torch.manual_seed(derive("dropout", 3))
    step, best, losses = 0, (math.inf, None), []
    for epoch in range(1, 5):
        order, summed, right = torch.randperm(23, generator=generator("order", 3, epoch)), 0.0, 0
        for rows in order.split(5):
            split = dataset.train.take(rows)
            scale = schedule_factor(step, total=20, warmup=0.2, schedule="cosine")
            for group in adamw.param_groups:
                group["lr"] = 0.02 * scale
            logits = other((split.inputs.float() - 40) / 50)
            loss = F.cross_entropy(logits, split.labels, label_smoothing=0.1)
            adamw.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 0.8)
            adamw.step()
            summed += loss.item() * len(rows)
            right += (logits.argmax(1) == split.labels).sum().item()
            step += 1
        other.eval()
        logits = other((dataset.validation.inputs.float() - 40) / 50)
        judged = F.cross_entropy(logits, dataset.validation.labels).item()
        other.train()
        losses.append((summed / 23, right / 23, judged))
        if judged < best[0]:
            best = (judged, epoch, weights(other))
    for record, (loss, accuracy, judged) in zip(run.epochs, losses, strict=True):
        assert record.train_loss == pytest.approx(loss, rel=1e-5)
        assert record.train_accuracy == pytest.approx(accuracy)
        assert record.validation_loss == pytest.approx(judged, rel=1e-5)
        assert record.seconds > 0
    assert [record.epoch for record in run.epochs] == [1, 2, 3, 4]
    assert run.best_epoch == best[1]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, best[2][name], rtol=1e-4, atol=1e-6)


def test_labelled_tokens_weigh_the_same_in_every_batch():
    """A batch's loss is the mean over its asked tokens, whichever rows they stand in."""
    dataset = asking()
    training = Training(epochs=2, batch_size=5, learning_rate=0.02, label_smoothing=0.1)
    model, other = Each(words=10), Each(words=10)
    run = fit(model, dataset, training, seed=3)
    adamw = torch.optim.AdamW(other.parameters(), lr=0.02, weight_decay=0.0)
    for record in run.epochs:
        order = torch.randperm(23, generator=generator("order", 3, record.epoch))
        summed, right, count = 0.0, 0, 0
        for rows in order.split(5):
            split = dataset.train.take(rows)
            at = split.labels >= 0
            logits, labels = other(split.inputs)[at], split.labels[at]
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
            adamw.zero_grad()
            loss.backward()
            adamw.step()
            summed, count = summed + loss.item() * len(labels), count + len(labels)
            right += (logits.argmax(1) == labels).sum().item()
        assert record.train_loss == pytest.approx(summed / count, rel=1e-5)
        assert record.train_accuracy == pytest.approx(right / count)
    assert run.best_epoch == 2, "the weights below are those of the last step"
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_ignored_labels_give_no_gradient():
    """What stands at tokens that are not asked moves no weight."""

    class Leaking(Each):
        def forward(self, inputs, valid=None):
            logits = super().forward(inputs, valid)
            labelled = (dataset.train.labels[0] >= 0)[None, :, None]
            return torch.where(labelled, logits, logits * self.wild)

    dataset, result = asking(train=1), []
    training = Training(epochs=1, batch_size=5, learning_rate=0.02)
    for wild in (1.0, 30.0):
        model = Leaking(words=10)
        model.wild = wild
        fit(model, dataset, training, seed=0)
        result.append(weights(model))
    assert 1 <= int((dataset.train.labels[0] >= 0).sum()) < 5
    assert equal(*result)


def test_equal_seeds_are_bit_equal_and_others_differ():
    dataset = images()
    runs = []
    for seed in (1, 1, 2):
        torch.rand(seed + 5)  # whatever was drawn before must not matter
        model = Tiny(dropout=0.3)
        runs.append((fit(model, dataset, FULL, seed=seed), weights(model)))
    (alone, first), (again, second), (other, third) = runs
    assert untimed(alone) == untimed(again)
    assert equal(first, second)
    assert untimed(alone) != untimed(other)
    assert not equal(first, third)


# best weights, stopping


def test_the_best_weights_are_in_the_model_afterwards():
    dataset = images(validation=12)
    model = Tiny()
    run = fit(model, dataset, settings(epochs=12, learning_rate=2.0), seed=0)
    losses = [epoch.validation_loss for epoch in run.epochs]
    assert run.best_epoch == 1 + losses.index(min(losses))
    assert run.best_epoch < 12, "the test needs a run whose last epoch is not its best"
    score = evaluate(model, dataset, dataset.validation)
    assert score.loss == pytest.approx(min(losses), rel=1e-6)


class Frozen(Tiny):
    """A model whose validation loss never moves."""

    def forward(self, inputs, valid=None):
        return super().forward(inputs, valid) * 0.0


@pytest.mark.parametrize(("enough", "epochs_run", "early"), [(1e-9, 1, True), (1.0, 3, False)])
def test_enough_accuracy_ends_a_training(enough, epochs_run, early):
    run = fit(Frozen(), images(), settings(epochs=3, enough=enough), seed=0)
    assert (len(run.epochs), run.stopped_early) == (epochs_run, early)
    assert 0.0 < run.epochs[0].validation_accuracy < 1.0


@pytest.mark.parametrize(
    ("patience", "epochs_run", "early"), [(1, 2, True), (3, 4, True), (7, 8, False)]
)
def test_a_flat_validation_loss_stops_after_patience(patience, epochs_run, early):
    run = fit(Frozen(), images(), settings(epochs=8, patience=patience), seed=0)
    assert (len(run.epochs), run.stopped_early, run.best_epoch) == (epochs_run, early, 1)


# what fit leaves as it was


def test_flags_and_rows_are_restored_and_progress_is_shown():
    model = Tiny(dropout=0.2).eval()
    model.head.train()
    display = At(0, None)
    fit(model, images(), settings(), seed=0, progress=display)
    assert not model.training
    assert model.head.training
    assert model.dropout.rows is None
    assert display.total == 2 * 5
    assert display.texts[0] == "epoch 1/2"
    assert display.texts[1].startswith("epoch 2/2, validation loss 1.")
    assert "%" in display.texts[2]


def test_products_are_in_the_dtype_of_the_training_and_in_float32_elsewhere():
    """The first step is that of a loop under autocast; weights and validation are in float32."""
    dtypes, model, start = [], Tiny(), Tiny()
    start.load_state_dict(model.state_dict())
    model.head.register_forward_hook(
        lambda module, _, out: dtypes.append((module.training, out.dtype))
    )
    data, rate = images(train=5), 1e-3
    run = fit(model, data, settings(epochs=1, learning_rate=rate, dtype="bfloat16"), seed=0)
    assert {*dtypes} == {(True, torch.bfloat16), (False, torch.float32)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = start(data.prepare(data.train.inputs))
    loss = F.cross_entropy(logits.float(), data.train.labels)
    assert run.epochs[0].train_loss == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    moved = model.head.weight.detach() - start.head.weight.detach()
    assert_close(moved, -rate * start.head.weight.grad.sign(), "same_math")  # Adam's first step


def test_frozen_parameters_stay():
    model = Tiny()
    model.hidden.requires_grad_(False)
    before = weights(model)
    fit(model, images(), settings(clip=1.0), seed=0)
    assert torch.equal(before["hidden.weight"], model.hidden.weight)
    assert not torch.equal(before["head.weight"], model.head.weight)


# losses that are not finite


def broken(dataset, where):
    """A data set with one infinite pixel in a split."""
    splits = {n: getattr(dataset, n) for n in ("train", "validation")}
    inputs = splits[where].inputs.float()
    inputs[-1, 0, 0, 0] = math.inf
    splits[where] = Split(inputs, splits[where].labels)
    rest = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(Dataset)}
    return Dataset(**(rest | splits))


def make_float(dataset):
    rest = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(Dataset)}
    floats = {
        n: Split(rest[n].inputs.float(), rest[n].labels) for n in ("train", "validation", "test")
    }
    return Dataset(**(rest | floats))


@pytest.mark.parametrize(("where", "which"), [("train", "training"), ("validation", "validation")])
def test_a_loss_that_is_not_finite_says_where_and_what_to_do(where, which):
    dataset = broken(make_float(images()), where)
    message = (
        rf"the {which} loss is (nan|inf) in epoch 1 with learning_rate=0\.01; lower .*gradients\.$"
    )
    with pytest.raises(StateError, match=message):
        fit(Tiny(), dataset, settings(), seed=0)


class Diverging(Tiny):
    """Turns to NaN at one training step."""

    def __init__(self, at, **options):
        super().__init__(**options)
        self.at, self.calls = at, 0

    def forward(self, inputs, valid=None):
        logits = super().forward(inputs, valid)
        self.calls += self.training
        return logits * math.nan if self.training and self.calls == self.at else logits


def test_the_last_good_checkpoint_is_kept_when_the_loss_diverges(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(StateError, match=rf"in epoch 3 .* The last checkpoint, {path}, is kept\."):
        fit(Diverging(at=12), images(), settings(epochs=4), seed=0, checkpoint=path, save_every=0.0)
    tensors, facts = load(path)
    assert facts["epoch"] == 3
    assert all(torch.isfinite(t).all() for t in tensors.values())


def test_ctrl_c_after_divergence_does_not_overwrite_the_good_checkpoint(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(StateError, match="the training loss is nan in epoch 2"):
        fit(
            Diverging(at=7),
            images(),
            settings(epochs=4),
            seed=0,
            checkpoint=path,
            save_every=0.0,
            progress=At(8, press),
        )
    tensors, facts = load(path)
    assert facts["epoch"] == 2
    assert all(torch.isfinite(t).all() for t in tensors.values())


# checkpoints and resuming


def whole_run(**options):
    model = Tiny(dropout=0.3)
    return fit(model, images(), FULL, seed=5, **options), weights(model)


def test_a_run_interrupted_at_every_step_still_ends_the_same(tmp_path):
    run, expected = whole_run()
    path, resume = tmp_path / "run", False
    for step in range(1, 21):
        torch.rand(3)  # whatever was drawn before must not matter
        with pytest.raises(Interrupted, match=rf"resume from {path}\.$") as caught:
            fit(
                Tiny(seed=step - 1, dropout=0.3),
                images(),
                FULL,
                seed=5,
                checkpoint=path,
                resume=resume,
                progress=At(step, press),
            )
        epoch, done = divmod(step - 1, 5)
        assert (caught.value.epoch, caught.value.step) == (epoch + 1, done + 1)
        assert caught.value.checkpoint == path
        resume = True
    resumed, result = whole_run(checkpoint=path, resume=True)
    assert untimed(resumed) == untimed(run)
    assert equal(result, expected)


class Stop(Exception):
    """What a crash looks like."""


def crash():
    raise Stop("crashed")


def test_a_run_that_crashed_resumes_from_the_last_checkpoint(tmp_path):
    run, expected = whole_run()
    path = tmp_path / "run"
    with pytest.raises(Stop, match="crashed"):
        whole_run(checkpoint=path, save_every=0.0, progress=At(13, crash))
    facts = load(path)[1]
    assert (facts["epoch"], facts["step"]) == (3, 2)
    resumed, result = whole_run(checkpoint=path, resume=True)
    assert untimed(resumed) == untimed(run)
    assert equal(result, expected)


def test_patience_counts_over_an_interruption(tmp_path):
    path, training = tmp_path / "run", settings(epochs=8, patience=3)
    with pytest.raises(Interrupted, match="epoch 3 after step 1"):
        fit(Frozen(), images(), training, seed=0, checkpoint=path, progress=At(11, press))
    run = fit(Frozen(), images(), training, seed=0, checkpoint=path, resume=True)
    assert (len(run.epochs), run.stopped_early) == (4, True)


def test_checkpoints_are_written_by_time_and_at_the_end(tmp_path, monkeypatch):
    from suffice.train import training_state

    written, write = [], training_state.write

    def counted(path, state, processes):
        written.append((state.epoch, state.step))
        write(path, state, processes)

    monkeypatch.setattr(training_state, "write", counted)
    path = tmp_path / "run"
    fit(Tiny(), images(), settings(epochs=3), seed=0, checkpoint=path)
    assert written == [(4, 0)]
    fit(Tiny(), images(), settings(epochs=3), seed=0, checkpoint=path, save_every=0.0)
    assert written[1:4] == [(1, 1), (1, 2), (1, 3)], "after each step"
    assert (2, 0) in written
    assert written[-1] == (4, 0)
    count = len(written)
    fit(Tiny(), images(), settings(epochs=3), seed=0)
    assert len(written) == count
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("patience", [None, 2])
def test_a_finished_run_resumes_to_itself_without_a_step(tmp_path, patience):
    training, path = settings(epochs=4, patience=patience), tmp_path / "run"
    run = fit(first := Frozen(), images(), training, seed=0, checkpoint=path)
    display = At(None, None)
    resumed = fit(
        second := Frozen(seed=3),
        images(),
        training,
        seed=0,
        checkpoint=path,
        resume=True,
        progress=display,
    )
    assert resumed == run
    assert equal(weights(first), weights(second))
    assert not hasattr(display, "total")


def test_another_run_s_checkpoint_is_refused_and_kept(tmp_path):
    path = tmp_path / "run"
    fit(Tiny(), images(), settings(), seed=0, checkpoint=path)
    before, mine = path.read_bytes(), weights(model := Tiny(seed=1))
    with pytest.raises(CheckpointError, match="seed was 0 and is 1"):
        fit(model, images(), settings(), seed=1, checkpoint=path, resume=True)
    assert path.read_bytes() == before
    assert equal(weights(model), mine)


def test_a_model_with_tied_weights_trains_and_resumes(tmp_path):
    def tied():
        model = Tiny(words=10)
        model.hidden = torch.nn.Linear(16, 10, bias=False)
        model.hidden.weight = model.embed.weight
        model.head = torch.nn.Linear(10, 6)
        return model

    run = fit(tied_model := tied(), tokens(), settings(), seed=0)
    path = tmp_path / "run"
    with pytest.raises(Interrupted, match="epoch 2 after step 2"):
        fit(tied(), tokens(), settings(), seed=0, checkpoint=path, progress=At(7, press))
    resumed = fit(model := tied(), tokens(), settings(), seed=0, checkpoint=path, resume=True)
    assert untimed(resumed) == untimed(run)
    assert equal(weights(model), weights(tied_model))
    assert model.hidden.weight is model.embed.weight


# Ctrl-C


def test_ctrl_c_without_a_checkpoint_says_so_and_puts_the_handler_back():
    before = signal.getsignal(signal.SIGINT)
    model = Tiny(dropout=0.1).eval()
    with pytest.raises(Interrupted, match="epoch 1 after step 2"):
        fit(model, images(), settings(), seed=0, progress=At(2, press))
    assert signal.getsignal(signal.SIGINT) is before
    assert not model.training


def test_ctrl_c_during_validation_waits_for_the_record(tmp_path):
    class Pressing(Tiny):
        def forward(self, inputs, valid=None):
            if not self.training:
                press()
            return super().forward(inputs, valid)

    path = tmp_path / "run"
    with pytest.raises(Interrupted, match="epoch 2 after step 0"):
        fit(Pressing(), images(), settings(), seed=0, checkpoint=path)
    assert [record["epoch"] for record in load(path)[1]["history"]] == [1]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path):
    class Impatient(Tiny):
        def forward(self, inputs, valid=None):
            press()
            press()
            raise AssertionError("the second press must not return")

    before = signal.getsignal(signal.SIGINT)
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match="^interrupted twice"):
        fit(Impatient(), images(), settings(), seed=0, checkpoint=path)
    assert not path.exists()
    assert signal.getsignal(signal.SIGINT) is before


# what is refused before the first step


@pytest.mark.parametrize("name", ["train", "validation"])
def test_an_empty_split_is_refused(name):
    with pytest.raises(DataError, match=name):
        fit(Tiny(), images(**{name: 0}), settings(), seed=0)


def test_augmenting_tokens_is_refused():
    with pytest.raises(ConfigError, match="shift"):
        fit(Tiny(words=10), tokens(), settings(augment="shift"), seed=0)


def test_resuming_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="resume=True"):
        fit(Tiny(), images(), settings(), seed=0, resume=True)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        fit(Tiny(), images(), settings(), seed=0, checkpoint=tmp_path / "a", resume=True)
