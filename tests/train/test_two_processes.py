"""Two gloo processes train like one: whole weights (DDP), weights in parts (FSDP2), checkpoints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from suffice.models import checkpoint
from suffice.models import folder as models
from suffice.train import evaluate, fit
from suffice.train.language import evaluate_lm, fit_lm

from . import cases, two_processes
from .cases import Each, Tiny
from .language.texts import LETTERS, files, settings, tiny
from .two_processes import REPLICATED, SHARDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One folder of files for each of `two_processes.PARTS`; rank 0 is this process."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group |= {"TORCHELASTIC_RUN_ID": "tests", "OMP_NUM_THREADS": "1"}
    environment = {n: v for n, v in os.environ.items() if not n.startswith("COV")}
    with (
        pytest.MonkeyPatch.context() as patch,
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.two_processes", str(folder)],
            env=environment | group | {"RANK": "1", "LOCAL_RANK": "1"},
            cwd=Path(__file__).resolve().parents[2],
            stderr=stderr,
        ) as second,
    ):
        try:
            two_processes.prepare(folder)
            for name, value in {**group, "RANK": "0", "LOCAL_RANK": "0"}.items():
                patch.setenv(name, value)
            two_processes.work(folder)
            assert second.wait(timeout=60) == 0
        except BaseException:
            second.kill()
            sys.stderr.write((folder / "stderr").read_text())
            raise
    return folder


# fit


def compare(path, model, dataset, *, seed, augment=None):
    """Compare weights, history and score with those of one process, trained now."""
    run = fit(model, dataset, cases.full(augment), seed=seed)
    score = evaluate(model, dataset, dataset.test)
    tensors, facts = checkpoint.load(path, model.state_dict())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-9, atol=1e-11)
    expected = json.loads(json.dumps(cases.record(run, score)))
    assert facts["epochs"] == pytest.approx(expected["epochs"], rel=1e-9)
    assert facts["score"] == pytest.approx(expected["score"], rel=1e-9)
    assert facts["best_epoch"] == expected["best_epoch"]


def test_images_are_trained_like_by_one(folder):
    # 23 rows in batches of 11, 11 and 1: shares differ, and the last leaves one process empty
    path = folder / "rows" / "images"
    compare(path, Tiny(**REPLICATED), cases.images(test=1), seed=5, augment="shift")


def test_tokens_are_trained_like_by_one(folder):
    compare(folder / "rows" / "tokens", Tiny(words=10, **REPLICATED), cases.tokens(), seed=6)


def test_labelled_tokens_are_trained_like_by_one(folder):
    # the halves of a batch have different numbers of labels
    compare(folder / "rows" / "asking", Each(words=10, **REPLICATED), cases.asking(), seed=7)


def test_a_translator_is_trained_like_by_one(folder):
    compare(folder / "rows" / "pairs", cases.translator(**REPLICATED), cases.pairs(), seed=8)


def test_ctrl_c_on_one_of_two_stops_both_at_one_step_and_resumes(folder):
    out = folder / "rows"
    assert [json.loads((out / f"stopped{rank}").read_text()) for rank in (0, 1)] == [[2, 2]] * 2
    compare(out / "resumed", Tiny(**REPLICATED), cases.images(), seed=5, augment="shift")


# fit_lm


def numbers(run):
    """Return every validation without its seconds."""
    return [list(asdict(record).values())[:-1] for record in run.measured]


def assert_close(history, expected):
    for ours, theirs in zip(history, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


def assert_same_weights(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("replicated/one", {}),
        ("replicated/cut", {"accumulate": 2}),
        ("replicated/resumed", {}),
        ("sharded/one", {"evaluation_batches": 1}),
        ("sharded/cut", {"accumulate": 2}),
        ("sharded/resumed", {}),
        ("sharded/replicated", {}),
        ("sharded/from_one", {}),
        ("sharded/whole", {}),
    ],
)
def test_a_language_model_is_trained_like_by_one(folder, tmp_path, path, changes):
    texts = files(tmp_path)
    model = tiny(**(SHARDED if path.startswith("sharded") else REPLICATED))
    run = fit_lm(model, *texts, settings(**changes), seed=5)
    tensors, facts = checkpoint.load(folder / path, model.state_dict())
    assert_same_weights(tensors, model.state_dict())
    assert_close(facts["looks"], numbers(run))
    result = evaluate_lm(model, texts[1], length=12, batch_size=2)
    assert facts["result"] == pytest.approx(result, rel=1e-6)


def test_ctrl_c_on_one_of_two_stops_both_after_one_step(folder):
    steps = {(folder / "replicated" / f"stopped{rank}").read_text() for rank in range(2)}
    assert len(steps) == 1
    assert 1 <= int(steps.pop()) < 6


def test_an_interrupted_sharded_training_ends_with_the_same_weights(folder):
    out = folder / "sharded"
    assert {(out / f"stopped{rank}").read_text() for rank in range(2)} == {"3"}
    (uninterrupted, facts), (resumed, again) = (
        checkpoint.load(out / n) for n in ("whole", "resumed")
    )
    assert again["result"] == pytest.approx(facts["result"], rel=1e-6)
    assert_close(again["looks"], facts["looks"])
    assert_same_weights(resumed, uninterrupted)


def test_one_process_resumes_what_two_began(folder, tmp_path):
    texts, out = files(tmp_path), folder / "sharded"
    model, alone = tiny(**SHARDED), tiny(seed=4, **SHARDED)
    run = fit_lm(alone, *texts, settings(), seed=5, checkpoint=out / "alone", resume=True)
    assert [record.step for record in run.measured] == [2, 4, 6]
    assert_close(numbers(run), numbers(fit_lm(model, *texts, settings(), seed=5)))
    assert_same_weights(alone.state_dict(), model.state_dict())
    assert not list(out.glob("alone.shards.*")), "the whole checkpoint has taken their place"


def test_the_kept_model_is_one_file_for_anyone(folder):
    out = folder / "sharded"
    lm, tokenizer, _ = models.load(out / "model")
    assert tokenizer.fingerprint == LETTERS.fingerprint
    assert [p.name for p in (out / "model").glob("*.safetensors")] == ["model.safetensors"]
    tensors, _ = checkpoint.load(out / "one", lm.state_dict())
    again = tiny(seed=7, **SHARDED).eval()
    again.load_state_dict(tensors)
    tokens = torch.arange(12)[None] % 8
    assert torch.equal(lm(tokens), again(tokens))


def test_only_the_last_checkpoint_and_its_shards_are_left(folder):
    out = folder / "sharded"
    (shards,) = out.glob("run.shards.*")
    assert shards.name == f"run.shards.{checkpoint.metadata(out / 'run')['shards']}"
    suffixes = {path.suffix for path in out.glob("*.shards.*/*")}
    assert suffixes == {".safetensors"}, "nothing is pickled"
