from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from suffice.measure.timing import peak_bytes

MIB = 2**20


def block() -> torch.Tensor:
    return torch.empty(MIB // 4)


def test_one_tensor():
    assert peak_bytes(block) == MIB


def test_two_alive_at_once():
    def two():
        a = block()
        b = block()
        return a, b

    assert peak_bytes(two) == 2 * MIB


def test_freed_before_the_next_is_not_added():
    def in_turn():
        for _ in range(5):
            kept = block()
            del kept

    assert peak_bytes(in_turn) == MIB


def test_the_peak_in_the_middle_counts():
    def hill():
        a, b = block(), block()
        c = block()
        del a, b
        return c

    assert peak_bytes(hill) == 3 * MIB


def test_freeing_what_was_there_before_is_no_peak():
    kept = [block(), block()]
    assert peak_bytes(kept.clear) == 0


def test_a_call_without_tensors_takes_nothing():
    assert peak_bytes(lambda: None) == 0


def test_a_forward_without_gradients():
    layer = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 16))
    x = torch.zeros(64, 256)
    with torch.no_grad():
        layer(x)
        peak = peak_bytes(lambda: layer(x))
    hidden, out = 64 * 1024 * 4, 64 * 16 * 4
    assert hidden + out <= peak <= 3 * hidden


def test_nothing_is_written_to_the_terminal():
    # in a process of its own: the profiler learns its log level when it is used first
    script = "import suffice.measure.timing as m, torch; m.peak_bytes(lambda: torch.empty(9))"
    plain = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, env=plain)
    assert answer.returncode == 0
    assert (answer.stdout, answer.stderr) == (b"", b"")


@pytest.mark.parametrize("level", [None, "3"])
def test_the_environment_is_left_as_it_was(monkeypatch, level):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    seen = []
    peak_bytes(lambda: seen.append(os.environ["KINETO_LOG_LEVEL"]))
    assert seen == [level or "6"]
    assert os.environ.get("KINETO_LOG_LEVEL") == level


@pytest.mark.parametrize(("highest", "peak"), [(5000, 4000), (500, 0)])
def test_cuda_reads_the_peak_of_its_allocator(monkeypatch, highest, peak):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: highest)
    assert peak_bytes(lambda: done.append("call"), device="cuda") == peak
    assert done == ["wait", "reset", "call", "wait"]
