"""What kernels and torch must agree on: matrices in codes, and inputs as kernels code them."""

from __future__ import annotations

from contextlib import contextmanager
from zlib import crc32

import pytest
import torch

from suffice.ops.native import library
from suffice.ops.native.matrix import in_panels

needs_kernels = pytest.mark.skipif(not library.available(), reason=library.why_not())
ISAS = library.library().suffice_isas().decode().split() if library.available() else []


@contextmanager
def using(isa):
    """Compute by one set of instructions; the former one is put back."""
    kernels = library.library()
    used = kernels.suffice_isa()
    if kernels.suffice_use_isa(isa.encode()):
        pytest.fail(f"the kernels of {isa} are not there")
    yield isa
    kernels.suffice_use_isa(used)


@pytest.fixture(params=ISAS)
def isa(request):
    """Every set of instructions that this processor has."""
    with using(request.param):
        yield request.param


@pytest.fixture
def some_isa(request):
    """One set of instructions, another one for each test: many tests meet all of them."""
    with using(ISAS[crc32(request.node.name.encode()) % len(ISAS)]) as name:
        yield name


def drawn_codes(outputs, inputs, bits, group, seed=0):
    """Return random codes and scales, as they lie in panels and as they are."""
    make = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, (outputs, inputs), generator=make)
    scales = torch.randn(outputs, inputs // group, generator=make).half()
    return in_panels(codes, scales, bits), codes, scales


def plain_numbers(codes, scales, bits):
    """Return the matrix by the definition."""
    group = codes.shape[1] // scales.shape[1]
    return (codes - (1 << (bits - 1))) * scales.double().repeat_interleave(group, dim=1)


def coded_inputs(x, group):
    """Return inputs [..., K] as kernels see them: 8 bits, a step for each group."""
    parts = x.unflatten(-1, (-1, group))
    top = parts.abs().amax(dim=-1, keepdim=True)
    by = torch.where(top > 0, 127.0 / top, 0.0)
    codes = (parts * by + torch.where(parts < 0, -0.5, 0.5)).trunc()
    return (codes.double() * (top / 127.0).double()).flatten(-2)


def drawn_inputs(*shape, group):
    """Return inputs none of which lies half-way between two codes, where any rounding decides."""
    x = torch.randint(-126, 127, shape) + torch.empty(shape).uniform_(-0.4, 0.4)
    x.unflatten(-1, (-1, group))[..., 0] = 127.0
    return x / 64
