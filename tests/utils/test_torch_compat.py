from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.func import grad, vmap

import suffice
from suffice import Attention, preset
from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.ops.native import matrix
from suffice.testing import assert_close, normal
from suffice.utils.torch_compat import check, check_mask, finite, readable, usable

NAN = torch.tensor([1.0, torch.nan])


def test_numbers_on_the_cpu_are_examined():
    assert readable(NAN)
    assert not finite(NAN)
    assert finite(NAN[:1])


def test_tensors_without_content_are_not_examined():
    assert not readable(NAN.to("meta"))
    assert finite(NAN.to("meta"))


def test_transformed_tensors_are_not_examined():
    results = []
    vmap(lambda x: results.append(finite(x)) or x)(NAN[:, None])
    assert results == [True]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own, of vmap
def test_gradients_of_each_sample():
    """Of a layer that mixes, rotates, and hides keys: what torch.func does to any module."""
    spec = preset("mistral", 16, 4, window=4, causal=True)
    layer = Attention(spec, dtype=torch.float64)
    x, valid = normal(3, 2, 9, 16, seed=1), torch.ones(2, 9, dtype=torch.bool)
    valid[0, 2] = False

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x, valid=valid).square().sum()

    want = []
    for sample in x:
        leaf = sample.clone().requires_grad_()
        want += torch.autograd.grad(loss(leaf), leaf)
    assert_close(vmap(grad(loss))(x), torch.stack(want))


def test_only_inference_tensors_are_copied():
    plain = torch.zeros(2)
    with torch.inference_mode():
        locked = torch.ones(2)
        assert usable((locked,))[0] is locked
    same, copied = usable((plain, locked))
    assert same is plain
    copied.add_(1.0)
    assert copied.tolist() == [2.0, 2.0]


def test_legal_shapes_pass():
    assert check("x", torch.zeros(2, 3), (2, 3)) is None
    assert check("x", torch.zeros(2, 3), (5, 5), (None, 3)) is None
    assert check("x", torch.zeros(()), ()) is None


@pytest.mark.parametrize("legal", [(2, 4), (2, 3, 1), (2,), (None,), (3, None)])
def test_other_shapes_are_refused(legal):
    with pytest.raises(ShapeError, match=r"x has shape \[2, 3\]"):
        check("x", torch.zeros(2, 3), legal)


def test_masks_are_boolean():
    assert check_mask("mask", torch.ones(1, dtype=torch.bool)) is None
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.bfloat16):
        with pytest.raises(MaskError, match=f"{dtype}.*from_hf"):
            check_mask("mask", torch.ones(1, dtype=dtype))


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_torch_and_the_kernels_share_one_number_of_threads(restored_threads, monkeypatch):
    numbers = []

    class Library:
        def suffice_multiply(self, *arguments):
            numbers.append(arguments[-1])

    monkeypatch.setattr(matrix, "library", Library)
    assert suffice.threads() == torch.get_num_threads()
    for n in (1, 2, 7):
        assert suffice.threads(n) == n == torch.get_num_threads()
        matrix.multiply(matrix.structure_of(torch.zeros(2, 3), None), torch.zeros(1, 3))
    assert numbers == [1, 2, 7]
    torch.set_num_threads(2)
    assert suffice.threads() == 2


@pytest.mark.parametrize("wrong", [0, -2, 1.5, True, "2"])
def test_an_illegal_number_of_threads_is_refused(restored_threads, wrong):
    with pytest.raises(ConfigError, match="threads"):
        suffice.threads(wrong)
    assert torch.get_num_threads() == restored_threads


FORK = """
import os, sys, torch, suffice
torch.set_num_threads(2)
layer = suffice.Attention(suffice.preset("standard", 256, 4))
x = torch.randn(8, 256, 256)
layer(x), torch.mm(torch.randn(900, 900), torch.randn(900, 900))
child = os.fork()
if child == 0:
    for call in (lambda: layer(x), lambda: suffice.attend(x[:, None], x[:, None], x[:, None])):
        try:
            call()
        except suffice.errors.StateError as error:
            print(error, flush=True)
    suffice.threads(1)
    with torch.no_grad():
        print(layer(x).shape, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_says_that_it_lacks_threads():
    """Torch alone waits for ever; `spawn` or one thread is the way out, and one thread computes."""
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        check=True,
    )
    first, second, shape = done.stdout.splitlines()
    assert "spawn" in first
    assert first == second
    assert shape == "torch.Size([8, 256, 256])"
