"""Two gloo processes, each with a part of the weights, train like one; checkpoints go round."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from suffice import checkpoint
from suffice.models import folder as models
from suffice.train.language import evaluate_lm, fit_lm

from .texts import LETTERS, files, settings, tiny

ROOT = Path(__file__).resolve().parents[3]
MODEL = {"dropout": 0.3, "dtype": torch.float64, "vocabulary_size": 9}  # 9 rows: 5 and 4
SCRIPT = """
    import os, shutil, signal, sys
    from dataclasses import asdict
    from pathlib import Path
    import torch
    from suffice import checkpoint
    from suffice.models import folder as models
    from suffice.text import TokenFile
    from suffice.train import Interrupted, processes
    from suffice.train.language import evaluate_lm, fit_lm
    from tests.train.language.test_sharded import MODEL
    from tests.train.language.texts import LETTERS, settings, tiny

    out = Path(sys.argv[1])
    texts = [TokenFile(out / name) for name in ("train.bin", "validation.bin")]

    with processes("cpu") as both:
        assert both.world_size == 2

        def train(name, *, seed=0, press=None, shard=True, keep=None, changes={}, **where):
            model = tiny(seed=seed, **MODEL)
            if press is not None:
                model.register_forward_hook(press)
            wanted = settings(shard=shard, **changes)
            kept = None if keep is None else lambda _: keep(model)
            run = fit_lm(model, *texts, wanted, seed=5, keep=kept, **where)
            assert type(model).__name__ == "LM"
            found = evaluate_lm(model, texts[1], length=12, batch_size=2)
            if both.is_main:
                looks = [list(asdict(one).values())[:-1] for one in run.measured]
                checkpoint.save(out / name, model.state_dict(), {"looks": looks, "found": found})

        keep = lambda model: models.save(out / "model", model, LETTERS)
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
            for name in ("alone", "doubled"):
                shutil.copy(place, out / name)
                number = checkpoint.metadata(place)["shards"]
                shutil.copytree(out / f"run.shards.{number}", out / f"{name}.shards.{number}")
        both.barrier()
        train("resumed", seed=3, checkpoint=place, resume=True)
        train("replicated", seed=3, checkpoint=out / "doubled", resume=True, shard=False)
        train("from_one", seed=3, checkpoint=out / "single", resume=True)
        train("whole")
"""


def interrupt(folder, texts):
    """Leave the checkpoint of one process after its third step."""
    model, calls = tiny(**MODEL), []

    def press(module, *_):
        calls.append(module.training)
        if sum(calls) == 3:
            raise KeyboardInterrupt

    model.register_forward_hook(press)
    with pytest.raises(KeyboardInterrupt):
        fit_lm(model, *texts, settings(), seed=5, checkpoint=folder / "single", save_every=0.0)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What two gloo processes made of the same work."""
    folder = tmp_path_factory.mktemp("sharded")
    interrupt(folder, files(folder))
    (folder / "work.py").write_text(textwrap.dedent(SCRIPT))
    environment = {n: v for n, v in os.environ.items() if not n.startswith("COV")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(folder / "work.py"), str(folder)],
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def like_one(out, name, model, run, texts):
    tensors, facts = checkpoint.load(out / name, model.state_dict())
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors[key], tensor, rtol=1e-5, atol=1e-7)
    for ours, look in zip(facts["looks"], run.measured, strict=True):
        assert ours == pytest.approx(list(asdict(look).values())[:-1], rel=1e-6)
    found = evaluate_lm(model, texts[1], length=12, batch_size=2)
    assert facts["found"] == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("one", {"evaluation_batches": 1}),
        ("cut", {"accumulate": 2}),
        ("resumed", {}),
        ("replicated", {}),
        ("from_one", {}),
        ("whole", {}),
    ],
)
def test_two_processes_with_parts_train_like_one(out, tmp_path, name, changes):
    texts = files(tmp_path)
    model = tiny(**MODEL)
    run = fit_lm(model, *texts, settings(**changes), seed=5)
    like_one(out, name, model, run, texts)


def test_an_interrupted_training_ends_with_the_same_weights(out):
    assert {(out / f"stopped{rank}").read_text() for rank in range(2)} == {"3"}
    (whole, facts), (resumed, again) = (checkpoint.load(out / n) for n in ("whole", "resumed"))
    assert again["found"] == pytest.approx(facts["found"], rel=1e-6)
    for ours, theirs in zip(again["looks"], facts["looks"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    for name, tensor in whole.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=1e-5, atol=1e-7)


def test_one_process_goes_on_where_two_were(out, tmp_path):
    texts = files(tmp_path)
    model, alone = tiny(**MODEL), tiny(seed=4, **MODEL)
    run = fit_lm(alone, *texts, settings(), seed=5, checkpoint=out / "alone", resume=True)
    assert [one.step for one in run.measured] == [2, 4, 6]
    whole = fit_lm(model, *texts, settings(), seed=5)
    for ours, look in zip(run.measured, whole.measured, strict=True):
        ours, look = (list(asdict(one).values())[:-1] for one in (ours, look))
        assert ours == pytest.approx(look, rel=1e-6)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(alone.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)
    assert not list(out.glob("alone.shards.*")), "the whole checkpoint has taken their place"


def test_the_kept_model_is_one_file_for_anyone(out, tmp_path):
    lm, tokenizer, _ = models.load(out / "model")
    assert tokenizer.fingerprint == LETTERS.fingerprint
    assert [p.name for p in (out / "model").glob("*.safetensors")] == ["model.safetensors"]
    tensors, _ = checkpoint.load(out / "one", lm.state_dict())
    again = tiny(seed=7, **MODEL).eval()
    again.load_state_dict(tensors)
    tokens = torch.arange(12)[None] % 8
    assert torch.equal(lm(tokens), again(tokens))


def test_only_the_last_checkpoint_and_its_shards_are_left(out):
    (folder,) = out.glob("run.shards.*")
    assert folder.name == f"run.shards.{checkpoint.metadata(out / 'run')['shards']}"
    found = {path.suffix for path in out.glob("*.shards.*/*")}
    assert found == {".safetensors"}, "nothing is pickled"
