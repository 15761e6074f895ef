"""The restriction of a call as one boolean mask."""

from __future__ import annotations

import pytest
import torch

from suffice.ops import AttentionCall, MaskInputs
from suffice.ops import call as module
from suffice.patterns import Causal, Full
from suffice.testing import bits, documents, normal

CPU = torch.device("cpu")
PROBLEM = {
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 4,
    "value_dim": 4,
    "scale": 1.0,
}


def test_plain_tells_whether_anything_restricts():
    assert MaskInputs().plain
    assert not MaskInputs(valid=torch.ones(1, 1).bool()).plain
    assert not MaskInputs(mask=torch.ones(1, 1, 1, 1).bool()).plain
    numbers = torch.zeros(1, 1)
    assert not MaskInputs(q_segments=numbers, k_segments=numbers).plain
    assert not MaskInputs(q_positions=numbers, k_positions=numbers).plain


def test_nothing_restricts_a_full_pattern():
    problem = AttentionCall(queries=3, keys=5, **PROBLEM)
    assert MaskInputs().restrict(problem, CPU) == (None, None)
    single = AttentionCall(queries=1, keys=5, pattern=Causal(), **PROBLEM)
    assert MaskInputs().restrict(single, CPU) == (None, None)


def test_empty_rows_are_opened_and_named():
    valid = torch.tensor([[False, True, True], [True, True, True]])
    problem = AttentionCall(queries=3, keys=3, pattern=Causal(), plain=False, **PROBLEM)
    allowed, empty = MaskInputs(valid=valid).restrict(problem, CPU)
    assert allowed[0, 0].tolist() == [[True] * 3, [False, True, False], [False, True, True]]
    assert empty[:, 0, :, 0].tolist() == [[True, False, False], [False] * 3]


def test_positions_replace_places():
    q, k = torch.tensor([[5, 0]]), torch.tensor([[0, 5, 6]])
    where = MaskInputs(q_positions=q, k_positions=k)
    got = where.allowed(Causal(), 2, 3, CPU)[0, 0]
    assert got.tolist() == [[True, True, False], [True, False, False]]


def test_everything_ands():
    valid, mask = bits(2, 5, seed=1), bits(2, 3, 4, 5, seed=2)
    q_numbers, k_numbers = documents(2, 4), documents(2, 5)
    where = MaskInputs(valid=valid, mask=mask, q_segments=q_numbers, k_segments=k_numbers)
    got = where.allowed(Causal(), 4, 5, CPU).expand(2, 3, 4, 5)
    for b in range(2):
        for h in range(3):
            for t in range(4):
                for s in range(5):
                    want = (
                        s <= t + 1
                        and valid[b, s]
                        and mask[b, h, t, s]
                        and q_numbers[b, t] == k_numbers[b, s]
                    )
                    assert bool(got[b, h, t, s]) == bool(want)


@pytest.mark.parametrize("limit", [0, module.CACHED_PAIRS])
def test_cached_masks_equal_new_ones(monkeypatch, limit):
    monkeypatch.setattr(module, "CACHED_PAIRS", limit)
    for queries, keys in ((3, 5), (5, 3), (4, 4)):
        problem = AttentionCall(queries=queries, keys=keys, pattern=Causal(), **PROBLEM)
        allowed, empty = MaskInputs().restrict(problem, CPU)
        want = Causal().mask(queries, keys)
        none = ~want.any(-1, keepdim=True)
        assert torch.equal(allowed[0, 0], want | none)
        if empty is None:
            assert not none.any()
        else:
            assert torch.equal(empty[0, 0], none)
        assert torch.equal(MaskInputs().allowed(Causal(), queries, keys, CPU)[0, 0], want)


def test_unread_keys_and_values_are_zeroed():
    k, v = normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 3, seed=2)
    valid = torch.tensor([[True] * 5, [True, False, True, True, False]])
    mask = torch.ones(2, 4, 3, 5, dtype=torch.bool)
    mask[0, :2, :, 3] = False  # both query heads of key/value head 0
    mask[0, 2, :, 4] = False  # one of two: head 3 still reads it
    clean_k, clean_v = MaskInputs(valid=valid, mask=mask).clean(k, v)
    unread = ~valid[:, None, :, None].expand(2, 2, 5, 1).clone()
    unread[0, 0, 3] = True
    assert torch.equal(clean_k, k.masked_fill(unread, 0.0))
    assert torch.equal(clean_v, v.masked_fill(unread, 0.0))
    same_k, same_v = MaskInputs().clean(k, v)
    assert same_k is k
    assert same_v is v


def test_one_mask_for_all_rows_and_heads():
    k = normal(2, 2, 3, 4, seed=1)
    mask = torch.tensor([[True, False, True]] * 2)[None, None]
    clean, _ = MaskInputs(mask=mask).clean(k, k)
    assert torch.equal(clean[:, :, 1], torch.zeros(2, 2, 4, dtype=torch.float64))
    assert torch.equal(clean[:, :, ::2], k[:, :, ::2])


def test_full_masks_are_never_allocated():
    assert Full().mask(3, 4).stride() == (0, 0)
