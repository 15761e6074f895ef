from __future__ import annotations

import importlib
import math
import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from suffice.errors import ConfigError, StateError
from suffice.train import (
    Silent,
    evaluate,
    load_model_into,
    loop,
    save_model,
)
from suffice.train.distributed import Processes, current, processes, resolve_device

from .cases import Tiny, images

# devices


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "mps", "cuda:0:1"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ConfigError, match=rf"unknown device '{name}'.*Legal: cpu, cuda\."):
        resolve_device(name)


def test_cuda_without_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = r"device='cuda:1', but torch finds no CUDA device here; give device='cpu', or install"
    with pytest.raises(ConfigError, match=message):
        resolve_device("cuda:1")


def test_cuda_is_the_gpu_of_this_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert resolve_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="'cuda:2'.*2 CUDA"):
        resolve_device("cuda")


# one process


def test_one_process_has_no_group_and_changes_nothing():
    with processes("cpu") as alone:
        assert not dist.is_initialized()
        assert alone == current() == Processes(0, 1)
        tensor, model = torch.arange(3.0), nn.Linear(1, 1)
        assert alone.sum(tensor) is tensor
        assert alone.broadcast(tensor) is tensor
        assert tensor.tolist() == [0.0, 1.0, 2.0]
        assert alone.wrap(model, torch.device("cpu")) is model
        assert (alone.any(True), alone.any(False)) == (True, False)
        assert alone.is_main
        assert alone.share(7) == (0, 7)
        alone.barrier()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_shares_are_contiguous_and_differ_by_one_row_at_most(count, world):
    shares = [Processes(rank, world).share(count) for rank in range(world)]
    assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


def under_torchrun(monkeypatch, world):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", str(world))


def test_torchrun_with_one_process_has_no_group_either(monkeypatch):
    under_torchrun(monkeypatch, 1)
    with processes("cpu") as alone:
        assert alone == Processes(0, 1)
        assert not dist.is_initialized()


def test_work_of_several_processes_outside_a_group_is_refused(monkeypatch):
    under_torchrun(monkeypatch, 3)
    with pytest.raises(StateError, match="3 processes"):
        evaluate(Tiny(), images(), images().test)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_the_group_lives_as_long_as_the_block(monkeypatch, device, backend):
    calls = []
    under_torchrun(monkeypatch, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda d: calls.append(d))
    monkeypatch.setattr(dist, "init_process_group", lambda b: calls.append(b))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))
    monkeypatch.setattr("suffice.train.distributed.current", lambda: Processes(1, 2))
    monkeypatch.setattr("gc.collect", lambda: calls.append("replicas are freed"))

    def work():
        with processes(device) as both:
            assert both == Processes(1, 2)
            raise KeyboardInterrupt("by hand")

    with pytest.raises(KeyboardInterrupt, match="by hand"):
        work()
    expected = [backend, "replicas are freed", "destroyed"]
    assert calls == ([torch.device("cuda", 1), *expected] if device == "cuda" else expected)


@pytest.fixture
def group(tmp_path):
    """A real gloo group of this one process, to run every call that several would make."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_call_goes_to_the_group_when_there_are_several(group):
    with processes("cpu") as outer:
        assert outer == Processes(0, 1)
    assert dist.is_initialized(), "a group that was there stays"
    two = Processes(0, 2)
    assert two.sum(torch.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]
    assert two.broadcast(torch.tensor(4)).item() == 4
    assert (two.any(True), two.any(False)) == (True, False)
    two.barrier()
    model = Tiny()
    wrapped = two.wrap(model, torch.device("cpu"))
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    assert wrapped.module is model


@pytest.fixture
def second(group, monkeypatch):
    """Pretend to be the second of two processes."""
    # the package's `evaluate` is the function of that module
    for module in (loop, importlib.import_module("suffice.train.scoring")):
        monkeypatch.setattr(module, "current", lambda: Processes(1, 2))


def counted(run):
    return [round(epoch.train_loss * 23 / math.log(6), 3) for epoch in run.epochs]


class Press(Silent):
    def step(self, done, total):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_model_in_ddp_is_stored_under_its_own_names(group, tmp_path):
    model = Tiny(seed=1)
    save_model(tmp_path / "m", Processes(0, 2).wrap(model, torch.device("cpu")), {})
    load_model_into(tmp_path / "m", other := Tiny(seed=2))
    assert torch.equal(other.head.weight, model.head.weight)
