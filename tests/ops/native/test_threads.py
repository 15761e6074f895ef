"""Threads and processes: right results whoever calls, no work while idle, no memory that grows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
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
# the allocator of a checked build keeps what was freed, and may be locked when a process forks
checked = pytest.mark.skipif("SUFFICE_KERNELS" in os.environ, reason="another allocator")


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


def script(text):
    """Run a program of its own; return what it wrote."""
    head = """
        import os, threading
        import torch
        from suffice.ops.native.matrix import multiply, structure_of
        from tests.ops.native.test_threads import products
        torch.set_num_threads(2)

        weight, x = torch.randn(200, 64), torch.randn(3, 64)
        matrix = structure_of(weight, None)
        want = multiply(matrix, x)  # torch's own products may hang in a child: it makes none

        def child():
            pid = os.fork()
            if not pid:
                torch.set_num_threads(1)
                os._exit(0 if all(same(multiply(matrix, x)) for _ in range(20)) else 1)
            return pid

        def same(y):
            return max(abs(a - b) for a, b in zip(sum(y.tolist(), []), wanted)) < 1e-4

        wanted = sum(want.tolist(), [])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(text)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_a_forked_process_multiplies_as_its_parent_does():
    written = script("""
        assert products(1)
        pid = child()
        assert products(3)
        assert os.waitpid(pid, 0)[1] == 0
        assert products(5)
        print("right")
    """)
    assert written == ["right"]


@checked
def test_a_process_forks_while_another_thread_computes():
    written = script("""
        stop = threading.Event()

        def work():
            while not stop.is_set():
                multiply(matrix, x)

        worker = threading.Thread(target=work)
        worker.start()
        for number in range(8):
            assert os.waitpid(child(), 0)[1] == 0
        stop.set()
        worker.join()
        print("right")
    """)
    assert written == ["right"]


def test_threads_that_have_nothing_to_do_sleep(threads):
    threads(2)
    products(1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_a_program_ends_while_threads_sleep():
    assert script("assert products(1); print('right')") == ["right"]


@pytest.mark.skipif(not STATM.exists(), reason="no /proc tells the memory of a process")
@checked
def test_long_texts_keep_no_memory():
    lm = built(preset("gqa", 8, 2, causal=True), depth=1, positions="none")
    state, tokens = lm.state(Rolling(16)), torch.zeros(1, dtype=torch.int64)

    def present():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with torch.inference_mode():
        decoder = NativeDecoder(lm, Rolling(16))
        for number in range(10_000):
            if number == 1_000:
                before = present()
            tokens = decoder.step(tokens, state).argmax(dim=1)
    assert state.length == 10_000
    assert present() - before <= 2 * 2**20
