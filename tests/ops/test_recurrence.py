"""The recurrences on torch, in chunks, as they run without the native kernels."""

from __future__ import annotations

import pytest
import torch

from suffice.ops.recurrence import Sequence, chunk_of, chunked, stepwise
from suffice.testing import assert_close

CHUNK = chunk_of(1000, by_features=False)
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 5)
KINDS = (("head", True), ("head", False), ("feature", False))


def posed(length, decays, corrects, documents=None):
    """Inputs whose decays are small, some after a large one, and a state before them."""
    draws = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, 2, 2, length, 6, generator=draws)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    log = -1e-3 * torch.rand(2, 2, length, 1 if decays == "head" else 6, generator=draws)
    log[:, :, ::7] = -3000.0
    beta = torch.rand(2, 2, length, 1, generator=draws) if corrects else None
    return Sequence(q, k, v, log, beta, documents), torch.randn(2, 2, 6, 6, generator=draws)


def documents_of(length):
    """The numbers of documents that end within a chunk and, in one row, with it."""
    at = torch.arange(length)
    return torch.stack([at // CHUNK, (at + 3) // 10])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("decays", "corrects"), KINDS)
def test_chunks_are_the_steps(decays, corrects, packed):
    """Outputs and the state after them, which a mistake behind the last token changes alone."""
    for length in LENGTHS:
        documents = documents_of(length) if packed else None
        data, state = posed(length, decays, corrects, documents)
        exact = Sequence(*(None if x is None else x.double() for x in data[:5]), documents)
        for got, want in zip(chunked(data, state), stepwise(exact, state.double()), strict=True):
            assert_close(got, want, n=length)
