"""What two gloo processes do for the tests that compare them with one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from suffice.models import checkpoint
from suffice.models import folder as models
from suffice.text import TokenFile
from suffice.train import Interrupted, evaluate, fit, processes, save
from suffice.train.language import evaluate_lm, fit_lm

from .cases import Each, Tiny, asking, full, images, pairs, record, tokens, translator
from .language.texts import LETTERS, files, settings, tiny

SHARDED = {"dropout": 0.3, "dtype": torch.float64, "vocabulary_size": 9}  # 9 rows: 5 and 4
REPLICATED = {"dropout": 0.3, "dtype": torch.float64}
PARTS = ("rows", "replicated", "sharded")  # folders, each filled by the function of its name


def prepare(out: Path) -> None:
    """Make the folders, the texts, and the checkpoint of one process after its third step."""
    for part in PARTS:
        (out / part).mkdir()
    files(out / "replicated")
    texts = files(out / "sharded")
    model, calls = tiny(**SHARDED), []

    def press(module, *_):
        calls.append(module.training)
        if sum(calls) == 3:
            raise KeyboardInterrupt

    model.register_forward_hook(press)
    place = out / "sharded" / "single"
    with pytest.raises(KeyboardInterrupt):
        fit_lm(model, *texts, settings(), seed=5, checkpoint=place, save_every=0.0)


def rows(out: Path, both) -> None:
    """`fit` on every kind of rows, and once interrupted."""

    def done(name, model, run, split, dataset):
        score = evaluate(model, dataset, split, batch_size=3)
        flags = both.sum(torch.tensor([run.best_epoch]))
        assert flags.item() == 2 * run.best_epoch
        copy = both.broadcast(model.head.weight.detach().clone())
        assert torch.equal(copy, model.head.weight)
        if both.is_main:
            save(out / name, model.state_dict(), record(run, score))

    dataset = images(test=1)
    model = Tiny(seed=both.rank, **REPLICATED)
    run = fit(model, dataset, full("shift"), seed=5)
    assert model.dropout.rows is None
    done("images", model, run, dataset.test, dataset)
    for name, dataset, model, seed in (
        ("tokens", tokens(), Tiny(words=10, **REPLICATED), 6),
        ("asking", asking(), Each(words=10, **REPLICATED), 7),
        ("pairs", pairs(), translator(**REPLICATED), 8),
    ):
        done(name, model, fit(model, dataset, full(None), seed=seed), dataset.test, dataset)

    class Pressing(Tiny):
        calls = 0

        def forward(self, inputs, valid=None):
            self.calls += 1
            if self.calls == 6 and both.rank == 1:  # the other process learns of it
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(inputs, valid)

    try:
        fit(Pressing(**REPLICATED), images(), full("shift"), seed=5, checkpoint=out / "run")
    except Interrupted as stopped:
        (out / f"stopped{both.rank}").write_text(json.dumps([stopped.epoch, stopped.step]))
    model = Tiny(seed=3, **REPLICATED)
    run = fit(model, images(), full("shift"), seed=5, checkpoint=out / "run", resume=True)
    done("resumed", model, run, images().test, images())


def save_run(out: Path, name: str, model, run, texts, both) -> None:
    result = evaluate_lm(model, texts[1], length=12, batch_size=2)
    if both.is_main:
        looks = [list(asdict(validation).values())[:-1] for validation in run.measured]
        checkpoint.save(out / name, model.state_dict(), {"looks": looks, "result": result})


def open_texts(out: Path) -> list[TokenFile]:
    return [TokenFile(out / name) for name in ("train.bin", "validation.bin")]


def replicated(out: Path, both) -> None:
    """`fit_lm` by DDP, and once interrupted."""
    texts = open_texts(out)
    for name, changes in (("one", {}), ("cut", {"accumulate": 2, "checkpointing": True})):
        model = tiny(seed=both.rank, **REPLICATED)
        run = fit_lm(model, *texts, settings(**changes), seed=5)
        save_run(out, name, model, run, texts, both)
    model, calls = tiny(**REPLICATED), []

    def press(*_):
        calls.append(0)
        if model.training and both.rank == 1 and len(calls) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    model.register_forward_hook(press)
    place = out / "run"
    try:
        fit_lm(model, *texts, settings(), seed=5, checkpoint=place, save_every=0.0)
    except Interrupted as stopped:
        (out / f"stopped{both.rank}").write_text(str(stopped.step))
    model = tiny(seed=3, **REPLICATED)
    run = fit_lm(model, *texts, settings(), seed=5, checkpoint=place, resume=True)
    save_run(out, "resumed", model, run, texts, both)


def sharded(out: Path, both) -> None:
    """`fit_lm` by FSDP, once interrupted, with checkpoints of one process and of two."""
    texts = open_texts(out)

    def train(name, *, seed=0, press=None, shard=True, keep=None, changes=None, **where):
        model = tiny(seed=seed, **SHARDED)
        if press is not None:
            model.register_forward_hook(press)
        after = None if keep is None else lambda _: keep(model)
        training = settings(shard=shard, **(changes or {}))
        run = fit_lm(model, *texts, training, seed=5, keep=after, **where)
        assert type(model).__name__ == "LM"
        save_run(out, name, model, run, texts, both)

    def keep(model):
        models.save(out / "model", model, LETTERS)

    train("one", seed=both.rank, keep=keep, changes={"evaluation_batches": 1})
    train("cut", changes={"accumulate": 2, "checkpointing": True})
    calls = []

    def press(module, *_):
        calls.append(module.training)
        if both.rank == 1 and sum(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    place = out / "run"
    try:
        train("", press=press, checkpoint=place, save_every=0.0)
    except Interrupted as stopped:
        (out / f"stopped{both.rank}").write_text(str(stopped.step))
    both.barrier()
    if both.is_main:
        number = checkpoint.metadata(place)["shards"]
        for name in ("alone", "doubled"):
            shutil.copy(place, out / name)
            shutil.copytree(out / f"run.shards.{number}", out / f"{name}.shards.{number}")
    both.barrier()
    train("resumed", seed=3, checkpoint=place, resume=True)
    train("replicated", seed=3, checkpoint=out / "doubled", resume=True, shard=False)
    train("from_one", seed=3, checkpoint=out / "single", resume=True)
    train("whole")


def work(out: Path) -> None:
    """Fill every folder, as one of the two processes."""
    with processes("cpu") as both:
        assert both.world_size == 2
        for part in (rows, replicated, sharded):
            part(out / part.__name__, both)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
