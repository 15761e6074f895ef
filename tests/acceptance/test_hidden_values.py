"""Part 1, 4: what a query may not see is not read for it, though another query may see it."""

from __future__ import annotations

import pytest
import torch

from suffice import attend
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, normal

from .mechanisms import D_MODEL, LENGTH, accepting, layer_of

# inputs so large that features vanish
pytestmark = pytest.mark.filterwarnings("ignore:.*vanish:RuntimeWarning")

POISONS = (float("nan"), 1e30)
MASK = bits(2, 1, 6, 6, seed=3)
NUMBERS = torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, -1)
CALLS = {
    "mask": ({"mask": MASK}, MASK[:, 0]),
    "causal": ({"pattern": Causal()}, Causal().mask(6, 6).expand(2, -1, -1)),
    "documents": ({"segments": (NUMBERS, NUMBERS)}, NUMBERS[:, :, None] == NUMBERS[:, None, :]),
}


IN_OPS = [
    (spelling, impl)
    for spelling, (call, _) in CALLS.items()
    for impl in accepting(6, 6, data=call.keys() - {"pattern"})
]


def blind_outputs(spelling, impl, which, content):
    """Outputs of the queries that may not see key 5, and the gradient of these very queries.

    A query that sees a NaN has a NaN for its own gradient: nothing is claimed of it.
    """
    q, *kv = (normal(2, h, 6, 4, seed=h) for h in (4, 2, 2))
    q.requires_grad_()
    kv[which][:, :, 5] = content
    call, allowed = CALLS[spelling]
    blind = ~allowed[:, :, 5]
    out = attend(q, *kv, impl=impl, **call).transpose(1, 2)[blind]
    return out, torch.autograd.grad(out.square().sum(), q)[0].transpose(1, 2)[blind]


@pytest.mark.parametrize(("spelling", "impl"), IN_OPS)
@pytest.mark.parametrize("which", [0, 1], ids=["key", "value"])
def test_outputs_and_gradients(impl, spelling, which):
    want = blind_outputs(spelling, impl, which, 0.0)
    for poison in POISONS:
        got = blind_outputs(spelling, impl, which, poison)
        assert_close(got[0], want[0])
        if poison != poison:  # 1e30 overflows in gradients of who sees it
            assert_close(got[1], want[1])


def test_an_overflow_of_half_stays_with_who_may_see_it():
    """A finite input whose keys overflow in half is as hidden as a NaN."""
    layer = layer_of("standard", dtype=torch.float16)
    x = normal(1, LENGTH, D_MODEL, seed=1, dtype=torch.float16)
    numbers = torch.tensor([[0] * 4 + [1] * 5])
    want = layer(x, segments=numbers)[:, :4]
    x[:, 4:] = 6e4 * x[:, 4:].sign()
    assert_close(layer(x, segments=numbers)[:, :4], want)


@pytest.mark.parametrize("impl", accepting(6, 6, pattern=Causal()))
def test_who_may_see_something_non_finite_is_marked(impl):
    q, k, v = (normal(2, h, 6, 4, seed=h) for h in (4, 2, 2))
    v[:, :, 3] = torch.inf
    out = attend(q, k, v, pattern=Causal(), impl=impl)
    assert out[:, :, :3].isfinite().all()
    assert out[:, :, 3:].isnan().all()
