"""Threads and processes: right results for every caller, no work while idle, bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from suffice import preset
from suffice.memory import Rolling
from suffice.models.native_decoder import NativeDecoder
from suffice.ops.native.matrix import multiply, structure_of
from suffice.testing import assert_close
from tests.models.native_cases import built
from tests.ops.native.codings import needs_kernels

pytestmark = needs_kernels
ROOT = Path(__file__).resolve().parents[3]
STATM = Path("/proc/self/statm")


@pytest.fixture
def threads():
    """Set torch's number of threads; it is put back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def products(number, times=20):
    """Return whether products of one matrix are right again and again."""
    make = torch.Generator().manual_seed(number)
    weight, x = torch.randn(200, 64, generator=make), torch.randn(3, 64, generator=make)
    matrix, want = structure_of(weight, None), x.double() @ weight.double().t()
    for _ in range(times):
        assert_close(multiply(matrix, x), want, n=64)
    return True


@pytest.mark.parametrize("count", [1, 2, 3, 17, 256, 1000])
def test_any_number_of_threads_works(threads, count):
    weight, x = torch.randn(300, 40), torch.randn(2, 40)
    threads(1)
    want = multiply(structure_of(weight, None), x)
    threads(count)
    assert products(count, times=4)
    assert_close(multiply(structure_of(weight, None), x), want, "exact")


def test_several_threads_of_python_call_at_once(threads):
    threads(2)
    right = []
    callers = [
        threading.Thread(target=lambda n=n: right.append(products(n, times=200))) for n in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 6


PROGRAM = """
import os, threading
import torch
from suffice.ops.native.matrix import multiply, structure_of
from tests.ops.native.test_threads import products
torch.set_num_threads(2)

weight, x = torch.randn(200, 64), torch.randn(3, 64)
matrix = structure_of(weight, None)
wanted = sum(multiply(matrix, x).tolist(), [])  # torch's own products may hang in a child

def same(y):
    return max(abs(a - b) for a, b in zip(sum(y.tolist(), []), wanted)) < 1e-4

def child():
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        os._exit(0 if all(same(multiply(matrix, x)) for _ in range(20)) else 1)
    return pid

def end(pid):
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the child's products are wrong")

products(1)
pid = child()
products(3)
end(pid)
products(5)
print("forked")

if "SUFFICE_KERNELS" not in os.environ:  # the allocator of a checked build may be locked
    stop = threading.Event()

    def work():
        while not stop.is_set():
            multiply(matrix, x)

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(8):
        end(child())
    stop.set()
    worker.join()
print("forked while another thread computed")
products(1)  # then the program ends while its threads sleep
"""


def test_processes_fork_and_end_while_threads_compute_and_sleep():
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines() == ["forked", "forked while another thread computed"]


def test_idle_threads_sleep(threads):
    threads(2)
    products(1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.skipif(not STATM.exists(), reason="no /proc/self/statm")
@pytest.mark.skipif("SUFFICE_KERNELS" in os.environ, reason="a checked build keeps freed memory")
def test_long_texts_keep_no_memory():
    lm = built(preset("gqa", 8, 2, causal=True), depth=1, positions="none")
    state, tokens = lm.state(Rolling(16)), torch.zeros(1, dtype=torch.int64)

    def present():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with torch.inference_mode():
        decoder = NativeDecoder(lm, Rolling(16))
        for number in range(5_000):
            if number == 1_000:
                before = present()
            tokens = decoder.step(tokens, state).argmax(dim=1)
    assert state.length == 5_000
    assert present() - before <= 2 * 2**20
