from __future__ import annotations

import json
import math
import os
import signal

import pytest
import torch

from suffice.errors import CheckpointError, ConfigError, ShapeError, StateError
from suffice.layers import Block
from suffice.models import checkpoint
from suffice.text import TokenFile
from suffice.train import Interrupted, Silent, engine
from suffice.train import language as fit_module
from suffice.train.distributed import Processes
from suffice.train.language import CrossEntropy, amount, evaluate_lm, fit_lm

from .texts import LETTERS, files, settings, tiny


@pytest.fixture
def texts(tmp_path):
    return files(tmp_path)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(model, other):
    return all(torch.equal(other.state_dict()[n], t) for n, t in model.state_dict().items())


def timeless(run):
    return [(m.step, m.tokens, m.train_loss, m.validation_loss) for m in run.measured]


class Press(Silent):
    def __init__(self, step):
        self.at = step

    def step(self, done, total):
        if done == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_it_learns_the_alphabet_and_keeps_the_best_weights(texts):
    model, snapshots = tiny(), []
    training = settings(steps=80, evaluate_every=20, learning_rate=0.02, warmup=5)
    run = fit_lm(
        model,
        *texts,
        training,
        seed=0,
        keep=lambda m: snapshots.append((m, weights(model))),
    )
    assert run.best.validation_loss < 0.3 < math.log(8) < run.measured[0].validation_loss + 1.9
    assert [record.step for record in run.measured] == [20, 40, 60, 80]
    assert not run.out_of_time
    assert snapshots[-1][0] == run.best
    assert all(torch.equal(model.state_dict()[n], t) for n, t in snapshots[-1][1].items())
    result = evaluate_lm(model, texts[1], length=12, batch_size=3, separate=True)
    assert result == pytest.approx(run.best.validation_loss, rel=1e-5)
    assert model.training


def test_it_is_a_function_of_the_seed(texts):
    runs = []
    for seed in (1, 1, 2):
        model = tiny(dropout=0.2)
        torch.rand(seed)
        runs.append((model, timeless(fit_lm(model, *texts, settings(), seed=seed))))
    assert runs[0][1] == runs[1][1] != runs[2][1]
    assert same(runs[0][0], runs[1][0])


@pytest.mark.parametrize("at", [1, 3, 4])
def test_an_interrupted_run_goes_on_to_the_same_end(texts, tmp_path, at):
    place, log = tmp_path / "run.safetensors", tmp_path / "log.jsonl"
    full = tiny(dropout=0.2)
    expected = fit_lm(full, *texts, settings(accumulate=2), seed=4)
    options = {"seed": 4, "checkpoint": place, "log": log}
    with pytest.raises(Interrupted, match=f"interrupted after step {at}; resume from"):
        fit_lm(tiny(dropout=0.2), *texts, settings(accumulate=2), **options, progress=Press(at))
    model = tiny(seed=9, dropout=0.2)
    torch.rand(7)
    run = fit_lm(model, *texts, settings(accumulate=2), **options, resume=True)
    assert timeless(run) == timeless(expected)
    assert same(full, model)
    looks = [
        line["step"]
        for line in map(json.loads, log.read_text().splitlines())
        if "validation_loss" in line
    ]
    assert looks == [2, 4, 6]


def test_the_time_ends_a_run_and_more_time_lets_it_go_on(texts, tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(engine.time, "perf_counter", lambda: 10.0 * next(clock))
    options = {"seed": 0, "checkpoint": tmp_path / "run.safetensors"}
    run = fit_lm(tiny(), *texts, settings(max_minutes=0.5), **options)  # steps last 10 s
    assert run.out_of_time
    assert [record.step for record in run.measured] == [2, 3]
    options["resume"] = True
    again = fit_lm(tiny(), *texts, settings(max_minutes=0.4), **options)
    assert timeless(again) == timeless(run)
    done = []
    display = Silent()
    display.step = lambda *numbers: done.append(numbers)
    more = fit_lm(tiny(), *texts, settings(max_minutes=2.0), **options, progress=display)
    assert not more.out_of_time
    assert [record.step for record in more.measured] == [2, 3, 4, 6]
    assert done == [(4, 6), (5, 6), (6, 6)]


def test_an_exhausted_time_limit_validates_and_ends(texts, tmp_path):
    place = tmp_path / "run.safetensors"
    with pytest.raises(Interrupted, match="after step 1"):
        fit_lm(tiny(), *texts, settings(), seed=0, checkpoint=place, progress=Press(1))
    training = settings(max_minutes=1e-9)
    run = fit_lm(tiny(), *texts, training, seed=0, checkpoint=place, resume=True)
    assert ([record.step for record in run.measured], run.out_of_time) == ([1], True)


def test_checkpointing_changes_neither_loss_nor_gradient(texts):
    models = [tiny(dropout=0.3) for _ in range(2)]
    runs = [
        timeless(fit_lm(model, *texts, settings(checkpointing=expected), seed=1))
        for model, expected in zip(models, (False, True), strict=True)
    ]
    assert runs[0] == runs[1]
    assert same(*models)
    assert not any("forward" in vars(m) for m in models[1].modules() if isinstance(m, Block))


def test_bfloat16_learns_and_keeps_fp32_weights(texts):
    model = tiny()
    run = fit_lm(model, *texts, settings(dtype="bfloat16"), seed=0)
    exact = fit_lm(tiny(), *texts, settings(), seed=0)
    assert model.head is None
    assert model.embedding.tokens.weight.dtype == torch.float32
    losses = [r.best.validation_loss for r in (run, exact)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_part_of_the_validation_text_is_spread_over_it(texts):
    model, result = tiny(), []
    model.register_forward_pre_hook(lambda _, inputs: result.append(inputs[0].tolist()))
    evaluate_lm(model, texts[1], length=12, batch_size=1, batches=3)
    every = list(texts[1].windows(12))
    expected = [every[n * len(every) // 3][:, :-1].tolist() for n in range(3)]
    assert result == expected


def test_validation_reads_every_token_once(texts):
    model = tiny(dtype=torch.float64).eval()
    total = count = 0.0
    for rows in texts[1].windows(12):
        with torch.no_grad():
            logits = model(rows[:, :-1])
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"
        ).item()
        count += rows[:, 1:].numel()
    assert count == len(texts[1]) - 1
    for size in (1, 4, 100):
        result = evaluate_lm(model, texts[1], length=12, batch_size=size)
        assert result == pytest.approx(total / count, rel=1e-6)


def test_a_text_shorter_than_a_window_is_one(tmp_path):
    file = TokenFile.write(tmp_path / "short.bin", ["abc"], LETTERS)
    assert evaluate_lm(tiny(), file, length=12) > 0


def test_bits_per_character_are_logged(tmp_path, texts):
    size = amount(texts[1], LETTERS)
    assert size.tokens == size.characters == size.bytes == len(texts[1])
    log = tmp_path / "log.jsonl"
    run = fit_lm(tiny(), *texts, settings(), seed=0, log=log, amount=size)
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["bits_per_byte"] == pytest.approx(run.measured[-1].validation_loss / math.log(2))


def test_a_wrong_call_is_refused(texts, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="resume=True"):
        fit_lm(tiny(), *texts, settings(), seed=0, resume=True)
    absent = tmp_path / "absent"
    with pytest.raises(CheckpointError, match="does not exist, so there is nothing to resume"):
        fit_lm(tiny(), *texts, settings(), seed=0, checkpoint=absent, resume=True)
    with pytest.raises(CheckpointError, match="does not exist or cannot be written"):
        fit_lm(tiny(), *texts, settings(), seed=0, checkpoint=absent / "run")
    with pytest.raises(ShapeError, match="8 tokens"):
        fit_lm(tiny(vocabulary_size=7), *texts, settings(), seed=0)
    monkeypatch.setattr(fit_module, "current", lambda: Processes(0, 3))
    with pytest.raises(ConfigError, match="batch_size=5.*6 rows"):
        fit_lm(tiny(), *texts, settings(accumulate=2), seed=0)


def test_another_run_or_another_file_is_refused(texts, tmp_path):
    place = tmp_path / "run.safetensors"
    fit_lm(tiny(), *texts, settings(), seed=0, checkpoint=place)
    options = {"checkpoint": place, "resume": True}
    with pytest.raises(CheckpointError, match="seed was 0 and is 1"):
        fit_lm(tiny(), *texts, settings(), seed=1, **options)
    with pytest.raises(CheckpointError, match=r"training\.batch_size"):
        fit_lm(tiny(), *texts, settings(batch_size=6), seed=0, **options)
    tensors, facts = checkpoint.load(place)
    for change in ({"step": 5}, {"best_step": 3}, {"tokens": -1}, {"history": [{"step": 1}]}):
        checkpoint.save(place, tensors, facts | change)
        with pytest.raises(CheckpointError, match="history"):
            fit_lm(tiny(), *texts, settings(), seed=0, **options)


@pytest.mark.parametrize("pressed", [False, True])
def test_a_loss_that_is_not_finite_ends_the_run(texts, tmp_path, pressed):
    model = tiny()

    class Break(Press):
        def step(self, done, total):
            if done == 3:
                model.norm.weight.data[0] = math.nan
            if pressed:
                super().step(done, total)

    place = tmp_path / "run.safetensors"
    message = r"(training|validation) loss is nan after step [34] "
    with pytest.raises(StateError, match=rf"{message}.*The last checkpoint, .* is kept"):
        fit_lm(
            model,
            *texts,
            settings(),
            seed=0,
            checkpoint=place,
            progress=Break(3),
            save_every=0.0,
        )
    place.unlink()
    model.norm.weight.data[0] = math.nan
    with pytest.raises(StateError, match=r"(training|validation) loss is nan .*gradients\.$"):
        fit_lm(model, *texts, settings(), seed=0, checkpoint=place)


class Twice:
    """Twice the cross-entropy, which no checkpoint of cross-entropy may go on with."""

    facts = {"name": "twice"}

    def summed_loss(self, model, batch, *, dtype):
        return 2 * CrossEntropy().summed_loss(model, batch, dtype=dtype)


def test_an_objective_is_minimised_and_recorded_in_the_checkpoint(texts, tmp_path):
    place = tmp_path / "run.safetensors"
    once = fit_lm(tiny(), *texts, settings(), seed=0)
    run = fit_lm(tiny(), *texts, settings(), seed=0, checkpoint=place, objective=Twice())
    assert run.measured[0].train_loss == pytest.approx(2 * once.measured[0].train_loss, rel=0.05)
    assert run.measured[0].train_loss > 1.5 * run.measured[0].validation_loss
    again = {"seed": 0, "checkpoint": place, "resume": True}
    assert fit_lm(tiny(), *texts, settings(), **again, objective=Twice()) == run
    with pytest.raises(CheckpointError, match=r"data\.objective"):
        fit_lm(tiny(), *texts, settings(), **again)
