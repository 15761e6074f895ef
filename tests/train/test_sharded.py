"""Sharding in a real gloo group of this one process; see language/test_sharded for two."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from suffice.errors import ConfigError
from suffice.train import Processes, sharded
from suffice.train.language import LMTraining, evaluate_lm, fit_lm
from suffice.train.language import fit as fit_module
from suffice.train.language.loss import _own_spans

from .language.texts import files, settings, tiny

CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def parted(group):
    return sharded.shard(tiny(), Processes(), CPU)


def test_a_copy_is_cut_and_the_model_is_left_whole(group):
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parted = sharded.shard(model, Processes(), CPU)
    assert (sharded.is_sharded(parted), sharded.is_sharded(model)) == (True, False)
    assert all(sharded.is_sharded(block) for block in parted.blocks)
    assert all(map(sharded.is_cut, parted.parameters()))
    assert not any(map(sharded.is_cut, model.parameters()))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(sharded.gathered(parted.state_dict()[name]), before[name])
        assert torch.equal(sharded.gathered(tensor), tensor)
        assert sharded.local(tensor) is tensor
    tokens = torch.arange(12)[None] % 8
    assert torch.equal(parted(tokens), model(tokens))
    assert Processes(0, 2).wrap(parted, CPU) is parted


def test_a_pass_without_a_way_back_is_let_go(parted):
    parameters = [sharded.is_cut(p) for p in parted.parameters()]
    with torch.no_grad():
        parted(torch.zeros(1, 4, dtype=torch.long))
    assert not all(map(sharded.is_cut, parted.parameters()))
    sharded.release_weights(parted)
    assert [sharded.is_cut(p) for p in parted.parameters()] == parameters


def test_gradients_are_added_up_apart(parted):
    tokens = torch.arange(12)[None] % 8
    with Processes(0, 2).no_sync(parted):
        parted(tokens).sum().backward()
        assert all(p.grad is None for p in parted.parameters()), "each still has all of it"
    parted(tokens).sum().backward()
    whole = tiny()
    (2 * whole(tokens).sum()).backward()
    for ours, theirs in zip(parted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(sharded.gathered(ours.grad), theirs.grad)


def test_whole_tensors_are_cut_and_filled_in(parted):
    model = tiny(seed=3)
    own = parted.state_dict()
    cut = {n: sharded.cut_like(t, own[n]) for n, t in model.state_dict().items()}
    assert all(map(sharded.is_cut, cut.values()))
    one = next(iter(cut.values()))
    assert sharded.cut_like(one, one) is one
    assert sharded.cut_like(CPU_ONE, CPU_ONE) is CPU_ONE
    other = tiny()
    sharded.fill(other, cut)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


CPU_ONE = torch.ones(1)


def test_a_single_number_cannot_be_cut(group):
    model = tiny()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match="'scale' is a single number, which cannot be cut betw"):
        sharded.shard(model, Processes(), CPU)


def test_processes_with_parts_evaluate_equally_often():
    def own(spans, in_step):
        return [list(_own_spans(spans, Processes(rank, 3), in_step=in_step)) for rank in range(3)]

    spans = [(n, n + 1, 1) for n in range(5)]
    for in_step, counts in ((True, [2, 2, 2]), (False, [1, 2, 2])):
        shares = own(spans, in_step)
        assert [len(share) for share in shares] == counts
        assert [span for share in shares for span, counts in share if counts] == spans
    assert [len(share) for share in own(spans[:1], in_step=True)] == [1, 1, 1]


def test_fitting_shards_where_it_is_asked_and_there_are_others(group, tmp_path, monkeypatch):
    texts, seen = files(tmp_path), []
    shard = sharded.shard

    def alone(model, processes, device):
        seen.append(processes)
        return shard(model, Processes(), device)

    monkeypatch.setattr(fit_module.sharded, "shard", alone)
    place = tmp_path / "run"
    fit_lm(tiny(), *texts, settings(shard=True), seed=0, checkpoint=place)
    assert seen == []
    monkeypatch.setattr(fit_module, "current", lambda: Processes(0, 2))
    fit_lm(tiny(), *texts, settings(shard=False), seed=0, checkpoint=place)
    assert seen == []
    model, kept = tiny(), []
    run = fit_lm(
        model,
        *texts,
        settings(shard=True),
        seed=0,
        checkpoint=place,
        keep=lambda _: kept.append({n: t.clone() for n, t in model.state_dict().items()}),
    )
    assert seen == [Processes(0, 2)]
    assert kept, "the caller's own model is filled before it is kept"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[-1][name])
    found = evaluate_lm(model, texts[1], length=12, separate=True)
    assert found == pytest.approx(run.best.validation_loss)
    for shard_again in (True, False):
        again, other = settings(shard=shard_again), tiny(seed=9)
        done = fit_lm(other, *texts, again, seed=0, checkpoint=place, resume=True)
        assert done.measured == run.measured
        for name, tensor in other.state_dict().items():
            assert torch.equal(tensor, kept[-1][name])


def test_the_setting_is_checked():
    sizes = {"steps": 1, "batch_size": 1, "length": 1, "learning_rate": 1.0}
    with pytest.raises(ConfigError, match=r"shard=1 is not True or False"):
        LMTraining(**sizes, shard=1)
