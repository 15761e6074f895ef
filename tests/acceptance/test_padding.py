"""T6 e-f, T7: nothing stored at a padded position influences a real output, in any mechanism."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from suffice import attend
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, bits, normal, padded

from .mechanisms import CROSS, D_MODEL, LENGTH, accepting, layer_of, named

SIDES = ("left", "right", "inside")
POISONS = (float("nan"), 1e30)


def value_and_gradients(layer, x, valid, *memory):
    inputs = [t.clone().requires_grad_() for t in (x, *memory)]
    out = layer(*inputs, valid=valid)
    real = out if memory else out[valid]
    return [
        real.detach(),
        *torch.autograd.grad(real.square().sum(), [*inputs, *layer.parameters()]),
    ]


@pytest.mark.parametrize("name", CROSS)
def test_content_of_padded_memory_never_matters(name):
    layer = layer_of(name)
    x, memory = normal(4, 3, D_MODEL, seed=1), normal(4, LENGTH, D_MODEL, seed=2)
    for side, poison in product(SIDES, POISONS):
        valid = padded(4, LENGTH, side)
        want = value_and_gradients(layer, x, valid, memory)
        poisoned = memory.masked_fill(~valid[..., None], poison)
        got = value_and_gradients(layer, x, valid, poisoned)
        for a, b in zip(got, want, strict=True):
            with named(side, poison):
                assert_close(a, b, "exact")


@pytest.mark.parametrize("name", CROSS)
def test_memory_padded_to_any_length(name):
    """T6 d, of one layer: the same memory padded to five lengths gives the same outputs."""
    layer = layer_of(name)
    x, memory = normal(2, 3, D_MODEL, seed=1), normal(2, 4, D_MODEL, seed=2)
    want = layer(x, memory)
    for length in range(5, LENGTH + 1):
        wide = torch.full((2, length, D_MODEL), float("nan"), dtype=torch.float64)
        wide[:, :4] = memory
        valid = (torch.arange(length) < 4).expand(2, -1)
        assert_close(layer(x, wide, valid=valid), want)
        left = {"dims": 1, "shifts": length - 4}
        assert_close(layer(x, wide.roll(**left), valid=valid.roll(**left)), want)


HIDDEN = torch.tensor(
    [[True, True, False, False, False, False], [False, False, False, True] + [False] * 2]
)
OPEN = ~HIDDEN[:, None, None, :]
SPELLINGS = {
    "valid": {"valid": ~HIDDEN},
    "mask": {"mask": OPEN.expand(2, 1, 6, 6)},
    "mask-per-head": {"mask": bits(2, 4, 6, 6, seed=3) & OPEN},
    "documents": {"segments": (torch.zeros(2, 6, dtype=torch.long), HIDDEN.long())},
    "valid-and-mask": {"valid": ~HIDDEN, "mask": bits(2, 1, 6, 6, seed=3)},
}


def attended(q, k, v, content, **call):
    """Output and gradients with this content in the keys and values that are hidden."""
    inputs = [q.clone(), *(x.masked_fill(HIDDEN[:, None, :, None], content) for x in (k, v))]
    for x in inputs:
        x.requires_grad_()
    out = attend(*inputs, **call)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize(
    ("spelling", "impl"),
    [(name, impl) for name, data in SPELLINGS.items() for impl in accepting(6, 6, data=data)],
)
@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=repr)
def test_attend_reads_no_key_that_nobody_may_see(impl, pattern, spelling):
    """Part 1, 4: whatever hides a key from every query, its content is not read."""
    q, k, v = (normal(2, h, 6, 4, seed=h) for h in (4, 2, 2))
    call = {"pattern": pattern, "impl": impl, **SPELLINGS[spelling]}
    clean = attended(q, k, v, 0.0, **call)
    for poison in POISONS:
        for got, want in zip(attended(q, k, v, poison, **call), clean, strict=True):
            assert_close(got, want, "exact")
