"""Two gloo processes, each with a part of the weights, train like one; checkpoints go round."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from suffice import checkpoint
from suffice.models import folder as models
from suffice.train.language import evaluate_lm, fit_lm
from tests.train.two_processes import SHARDED

from .texts import LETTERS, files, settings, tiny


@pytest.fixture(scope="module")
def out(made_by_two):
    return made_by_two / "sharded"


def like_one(out, name, model, run, texts):
    tensors, facts = checkpoint.load(out / name, model.state_dict())
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors[key], tensor, rtol=1e-5, atol=1e-7)
    for ours, look in zip(facts["looks"], run.measured, strict=True):
        assert ours == pytest.approx(list(asdict(look).values())[:-1], rel=1e-6)
    result = evaluate_lm(model, texts[1], length=12, batch_size=2)
    assert facts["result"] == pytest.approx(result, rel=1e-6)


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
    model = tiny(**SHARDED)
    run = fit_lm(model, *texts, settings(**changes), seed=5)
    like_one(out, name, model, run, texts)


def test_an_interrupted_training_ends_with_the_same_weights(out):
    assert {(out / f"stopped{rank}").read_text() for rank in range(2)} == {"3"}
    (whole, facts), (resumed, again) = (checkpoint.load(out / n) for n in ("whole", "resumed"))
    assert again["result"] == pytest.approx(facts["result"], rel=1e-6)
    for ours, theirs in zip(again["looks"], facts["looks"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    for name, tensor in whole.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=1e-5, atol=1e-7)


def test_one_process_goes_on_where_two_were(out, tmp_path):
    texts = files(tmp_path)
    model, alone = tiny(**SHARDED), tiny(seed=4, **SHARDED)
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
    again = tiny(seed=7, **SHARDED).eval()
    again.load_state_dict(tensors)
    tokens = torch.arange(12)[None] % 8
    assert torch.equal(lm(tokens), again(tokens))


def test_only_the_last_checkpoint_and_its_shards_are_left(out):
    (folder,) = out.glob("run.shards.*")
    assert folder.name == f"run.shards.{checkpoint.metadata(out / 'run')['shards']}"
    result = {path.suffix for path in out.glob("*.shards.*/*")}
    assert result == {".safetensors"}, "nothing is pickled"
