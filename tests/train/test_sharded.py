from __future__ import annotations

import json
import struct

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from suffice.errors import CheckpointError, ConfigError
from suffice.models import checkpoint
from suffice.train import Processes, sharded
from suffice.train import language as fit_module
from suffice.train.distributed import is_sharded
from suffice.train.language import _process_spans, evaluate_lm, fit_lm

from .language.texts import files, settings, tiny

# sharded

CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def parted(group):
    return sharded.shard(tiny(), Processes(), CPU)


def test_shard_cuts_a_copy_and_not_the_model(group):
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parted = sharded.shard(model, Processes(), CPU)
    assert (is_sharded(parted), is_sharded(model)) == (True, False)
    assert all(is_sharded(block) for block in parted.blocks)
    assert all(map(sharded.is_cut, parted.parameters()))
    assert not any(map(sharded.is_cut, model.parameters()))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(sharded.gather(parted.state_dict()[name]), before[name])
        assert torch.equal(sharded.gather(tensor), tensor)
        assert sharded.local(tensor) is tensor
    tokens = torch.arange(12)[None] % 8
    assert torch.equal(parted(tokens), model(tokens))
    assert Processes(0, 2).wrap(parted, CPU) is parted


def test_gathered_weights_are_released_after_a_forward_pass_alone(parted):
    parameters = [sharded.is_cut(p) for p in parted.parameters()]
    with torch.no_grad():
        parted(torch.zeros(1, 4, dtype=torch.long))
    assert not all(map(sharded.is_cut, parted.parameters()))
    sharded.release_weights(parted)
    assert [sharded.is_cut(p) for p in parted.parameters()] == parameters


def test_no_sync_accumulates_local_gradients(parted):
    tokens = torch.arange(12)[None] % 8
    with Processes(0, 2).no_sync(parted):
        parted(tokens).sum().backward()
        assert all(p.grad is None for p in parted.parameters()), "each still has all of it"
    parted(tokens).sum().backward()
    unsharded = tiny()
    (2 * unsharded(tokens).sum()).backward()
    for ours, theirs in zip(parted.parameters(), unsharded.parameters(), strict=True):
        torch.testing.assert_close(sharded.gather(ours.grad), theirs.grad)


def test_whole_tensors_are_cut_and_filled_in(parted):
    model = tiny(seed=3)
    weights = parted.state_dict()
    cut = {n: sharded.cut_like(t, weights[n]) for n, t in model.state_dict().items()}
    assert all(map(sharded.is_cut, cut.values()))
    tensor_part = next(iter(cut.values()))
    assert sharded.cut_like(tensor_part, tensor_part) is tensor_part
    assert sharded.cut_like(CPU_ONE, CPU_ONE) is CPU_ONE
    other = tiny()
    sharded.fill(other, cut)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


CPU_ONE = torch.ones(1)


def test_a_single_number_cannot_be_cut(group):
    model = tiny()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match="'scale'"):
        sharded.shard(model, Processes(), CPU)


def test_processes_with_parts_evaluate_equally_often():
    def weights(spans, in_step):
        return [
            list(_process_spans(spans, Processes(rank, 3), in_step=in_step)) for rank in range(3)
        ]

    spans = [(n, n + 1, 1) for n in range(5)]
    for in_step, counts in ((True, [2, 2, 2]), (False, [1, 2, 2])):
        shares = weights(spans, in_step)
        assert [len(share) for share in shares] == counts
        assert [span for share in shares for span, counts in share if counts] == spans
    assert [len(share) for share in weights(spans[:1], in_step=True)] == [1, 1, 1]


def test_weights_are_sharded_only_between_several_processes(group, tmp_path, monkeypatch):
    texts, calls = files(tmp_path), []
    shard = sharded.shard

    def alone(model, processes, device):
        calls.append(processes)
        return shard(model, Processes(), device)

    monkeypatch.setattr(fit_module.sharded, "shard", alone)
    place = tmp_path / "run"
    fit_lm(tiny(), *texts, settings(shard=True), seed=0, checkpoint=place)
    assert calls == []
    monkeypatch.setattr(fit_module, "current", lambda: Processes(0, 2))
    fit_lm(tiny(), *texts, settings(shard=False), seed=0, checkpoint=place)
    assert calls == []
    model, snapshots = tiny(), []
    run = fit_lm(
        model,
        *texts,
        settings(shard=True),
        seed=0,
        checkpoint=place,
        keep=lambda _: snapshots.append({n: t.clone() for n, t in model.state_dict().items()}),
    )
    assert calls == [Processes(0, 2)]
    assert snapshots, "the caller's own model is filled before it is kept"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, snapshots[-1][name])
    result = evaluate_lm(model, texts[1], length=12, separate=True)
    assert result == pytest.approx(run.best.validation_loss)
    for shard_again in (True, False):
        again, other = settings(shard=shard_again), tiny(seed=9)
        done = fit_lm(other, *texts, again, seed=0, checkpoint=place, resume=True)
        assert done.measured == run.measured
        for name, tensor in other.state_dict().items():
            assert torch.equal(tensor, snapshots[-1][name])


# shards

FULL = {"a/weight": torch.arange(12.0).view(6, 2), "b": torch.arange(3.0)}
WHOLE = {"shards": 1}


@pytest.fixture
def cut(tmp_path):
    """The tensors, cut in a group of this one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield {name: distribute_tensor(tensor, mesh) for name, tensor in FULL.items()}
    dist.destroy_process_group()


@pytest.fixture
def path(tmp_path):
    """A checkpoint whose folder has two files, as two processes leave it."""
    folder = tmp_path / "run.shards.1"
    folder.mkdir()
    part(folder / "one.safetensors", slice(0, 4), slice(0, 2))
    part(folder / "two.safetensors", slice(4, 6), slice(2, 3))
    return tmp_path / "run"


def part(file, rows, numbers, **other):
    tensors = {"a/weight": FULL["a/weight"][rows].clone(), "b": FULL["b"][numbers].clone()}
    offsets = {"a/weight": [rows.start, 0], "b": [numbers.start]}
    message = {name: {"saved_offsets": offset} for name, offset in offsets.items()}
    save_file(tensors, file, {"DCP_SHARDING_INFO": json.dumps(message), **other})


def test_sharded_tensors_are_read_sharded_or_whole(cut, tmp_path):
    path = tmp_path / "run"
    assert sharded.write(path, cut, Processes()) == 1
    assert sharded.write(path, {n: t * 2 for n, t in cut.items()}, Processes()) == 2
    for facts, factor in ((WHOLE, 1), ({"shards": 2}, 2)):
        result = sharded.read(path, facts, cut)
        assert result.keys() == FULL.keys()
        assert all(torch.equal(t.full_tensor(), factor * FULL[n]) for n, t in result.items())
    assert {file.suffix for file in tmp_path.glob("run.*/*")} == {".safetensors"}
    (tmp_path / "run.shards.3").symlink_to(tmp_path / "run.shards.1")
    (tmp_path / "other.shards.1").mkdir()
    sharded.remove_others(path, 2)
    left = sorted(file.name for file in tmp_path.glob("*.shards.*"))
    assert left == ["other.shards.1", "run.shards.2", "run.shards.3"]
    sharded.remove_others(path, None)
    assert not (tmp_path / "run.shards.2").exists()


def test_one_process_reads_what_two_wrote(path):
    others = {**FULL, "c": torch.ones(1)}
    result = sharded.read(path, WHOLE, others)
    assert result.keys() == FULL.keys()
    assert all(torch.equal(tensor, FULL[name]) for name, tensor in result.items())
    assert sharded.read(path, {}, others) == {}


@pytest.mark.parametrize("number", [2, "1", "../run.shards.1", True, None])
def test_a_folder_that_is_not_there_is_refused(path, number):
    with pytest.raises(CheckpointError, match=r"run\.shards"):
        sharded.read(path, {"shards": number}, FULL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.ones(4)}, "'b' is of another shape or dtype than the model's"),
        ({"b": torch.ones(3, dtype=torch.float64)}, "'b' is of another shape or dtype"),
    ],
)
def test_tensors_of_another_model_are_refused(path, change, message):
    with pytest.raises(CheckpointError, match=rf"run\.shards\.1 does not fit: {message}"):
        sharded.read(path, WHOLE, {**FULL, **change})
    with pytest.raises(CheckpointError, match="'b' is not in the model"):
        sharded.read(path, WHOLE, {"a/weight": FULL["a/weight"]})


@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 5), slice(3, 4)])
def test_a_part_that_is_absent_or_doubled_is_refused(path, rows):
    part(path.with_name("run.shards.1") / "one.safetensors", rows, slice(0, 2))
    with pytest.raises(CheckpointError, match="'a/weight' lacks a part"):
        sharded.read(path, WHOLE, FULL)


@pytest.mark.parametrize("message", ["{", "[]", '{"a/weight": {}}', "[" * 10**5])
def test_a_damaged_header_is_refused(path, message):
    file = path.with_name("run.shards.1") / "one.safetensors"
    part(file, slice(0, 4), slice(0, 2), DCP_SHARDING_INFO=message)
    with pytest.raises(CheckpointError, match=r"run\.shards\.1"):
        sharded.read(path, WHOLE, FULL)


def test_files_of_other_formats_are_not_opened(path):
    file = path.with_name("run.shards.1") / "three.distcp"
    file.write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"three\.distcp"):
        sharded.read(path, WHOLE, FULL)
    file.write_bytes(struct.pack("<Q", 8) + b"notjson!")
    with pytest.raises(CheckpointError, match=r"three\.distcp"):
        checkpoint.metadata(file)
