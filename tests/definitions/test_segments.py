"""Packed documents: each run of equal numbers is attended as if it stood alone."""

from __future__ import annotations

import pytest
import torch

from suffice import attend, preset
from suffice.patterns import Causal
from suffice.testing import assert_close, normal

from .loops import built, head, tensor

SPECS = {
    "standard": preset("standard", 6, 2),
    "causal": preset("standard", 6, 2, causal=True),
    "optimised": preset("optimised", 6, 2),
    "efficient": preset("efficient", 6, 3),
    "super": preset("super_attention", 6, 2, length=9),
    "causal-super": preset("super_attention", 6, 2, length=9, causal=True),
    "mqa": preset("mqa", 6, 3, causal=True),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_number_that_returns_is_another_document(name):
    layer, x = built(SPECS[name]), normal(1, 6, 6, seed=1)
    got = layer(x, segments=torch.tensor([[0, 0, 7, 7, 0, 0]]))
    want = torch.cat([layer(x[:, i : i + 2]) for i in (0, 2, 4)], dim=1)
    assert_close(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_attend_sees_keys_of_the_same_number(causal):
    q, k, v = (normal(1, 1, n, 3, seed=n) for n in (5, 7, 7))
    of_q, of_k = [0, 1, 1, 2, 3], [1, 0, 1, 2, 2, 0, 1]

    def see(t, s):
        return of_q[t] == of_k[s] and (not causal or s <= t + 2)

    want = head(q[0, 0].tolist(), k[0, 0].tolist(), v[0, 0].tolist(), see, 3**-0.5)
    numbers = (torch.tensor([of_q]), torch.tensor([of_k]))
    pattern = {"pattern": Causal()} if causal else {}
    assert_close(attend(q, k, v, segments=numbers, **pattern), tensor([[want]]))


@pytest.mark.parametrize("name", ["standard", "optimised", "efficient", "super"])
def test_cross_attention_reads_the_memory_of_its_own_number(name):
    layer = built(SPECS[name])
    x, memory = normal(1, 5, 6, seed=1), normal(1, 7, 6, seed=2)
    segments = torch.tensor([[4, 4, 9, 9, 9]])
    of_memory = torch.tensor([[9, 9, 9, 4, 4, 4, 4]])
    got = layer(x, memory, segments=segments, source_segments=of_memory)
    assert_close(got[:, :2], layer(x[:, :2], memory[:, 3:]))
    assert_close(got[:, 2:], layer(x[:, 2:], memory[:, :3]))
