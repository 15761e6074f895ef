"""Documents of a packed row read their own part of a packed memory."""

from __future__ import annotations

import pytest
import torch

from suffice.testing import assert_close, normal

from .mechanisms import CROSS, D_MODEL, DOCUMENTED, LENGTH, layer_of

CROSS_DOCUMENTED = [name for name in CROSS if name in DOCUMENTED]


@pytest.mark.parametrize("name", CROSS_DOCUMENTED)
def test_packed_memory(name):
    layer = layer_of(name)
    x, memory = normal(1, 5, D_MODEL, seed=1), normal(1, LENGTH, D_MODEL, seed=2)
    segments = torch.tensor([[0, 0, 1, 1, 1]])
    of_memory = torch.tensor([[0] * 6 + [1] * 3])
    got = layer(x, memory, segments=segments, source_segments=of_memory)
    assert_close(got[:, :2], layer(x[:, :2], memory[:, :6]))
    assert_close(got[:, 2:], layer(x[:, 2:], memory[:, 6:]))


@pytest.mark.parametrize("name", CROSS_DOCUMENTED)
def test_a_document_without_memory_gets_the_output_bias(name):
    layer = layer_of(name)
    x, memory = normal(1, 3, D_MODEL, seed=1), normal(1, 4, D_MODEL, seed=2)
    got = layer(
        x, memory, segments=torch.tensor([[0, 5, 0]]), source_segments=torch.zeros(1, 4).long()
    )
    assert torch.equal(got[0, 1], layer.o_proj.bias)
    assert_close(got[:, [0, 2]], layer(x[:, [0, 2]], memory))
