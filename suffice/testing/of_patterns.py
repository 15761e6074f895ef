"""What every pattern must keep: its mask, its count and its blocks tell of one and the same thing.

Everything is held against single pairs of positions, asked one at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.patterns import Pattern
from suffice.testing.case import Case
from suffice.testing.closeness import assert_close

BLOCKS = (1, 2, 3, 64)  # sides of the blocks a layout is asked for


def mask_is_the_predicate(case: Case) -> None:
    """The mask holds what each single pair is allowed, for queries that stand last among keys."""
    pattern, length = case.spec.pattern, case.length
    pairs = one_by_one(pattern, length)
    for queries in {1, length - 1, length}:
        assert_close(pattern.mask(queries, length), pairs[..., length - queries :, :], "exact")
    at = torch.stack([torch.arange(length), torch.arange(length).flip(0)])
    rows = pattern.allowed(at[:, None, :, None], at[:, None, None, :])
    for row, positions in zip(rows.expand(2, -1, -1, -1), at, strict=True):
        want = pairs[..., positions, :][..., positions]
        assert_close(row.expand(row.shape[0], length, length), _heads(want), "exact")


def causal_patterns_look_back(case: Case) -> None:
    """A pattern that calls itself causal allows no later key."""
    late = case.spec.pattern.mask(case.length, case.length).triu(diagonal=1)
    if case.spec.pattern.causal and bool(late.any()):
        raise AssertionError(f"causal, but allows (head,) query, key {late.nonzero()[0].tolist()}")


def spacing_is_kept(case: Case) -> None:
    """Allowed pairs lie only at distances that are multiples of the pattern's spacing."""
    pattern, length = case.spec.pattern, case.length
    at = torch.arange(length)
    between = (at[:, None] - at[None, :]) % pattern.spacing != 0
    found = (pattern.mask(length, length) & between).nonzero()
    if len(found):
        raise AssertionError(f"spacing {pattern.spacing}, but allows {found[0].tolist()}")


def pairs_are_counted(case: Case) -> None:
    """The pattern counts exactly the pairs it allows to some head."""
    pattern, length = case.spec.pattern, case.length
    for queries in {1, length - 1, length}:
        want = _heads(pattern.mask(queries, length)).any(dim=0).sum().item()
        got = pattern.pairs(queries, length)
        if got != want:
            raise AssertionError(f"{got} pairs of {queries} queries, the mask has {want}")


def layout_is_the_mask(case: Case) -> None:
    """A layout says of each block whether nothing, something or everything in it is allowed."""
    pattern, length = case.spec.pattern, case.length
    for queries in {1, length - 1, length}:
        mask = _heads(pattern.mask(queries, length))
        for block in BLOCKS:
            got = pattern.layout(queries, length, block)
            if got.block != block:
                raise AssertionError(f"asked for blocks of {block}, got blocks of {got.block}")
            want = [
                [int(part.any()) + int(part.all()) for part in rows.split(block, dim=2)]
                for rows in mask.split(block, dim=1)
            ]
            assert_close(got.touched, torch.tensor(want, dtype=torch.int8), "exact")


def bounds_are_never_wrong(case: Case) -> None:
    """What a pattern says of a rectangle from its corners holds for every pair in it."""
    pattern, length = case.spec.pattern, case.length
    mask = _heads(pattern.mask(length, length))
    at = torch.arange(length)
    spans = torch.combinations(at, with_replacement=True)  # first and last, included
    (q_first, q_last), (k_first, k_last) = spans[:, None].unbind(-1), spans[None].unbind(-1)
    told = pattern.bounds(q_first, q_last, k_first, k_last).expand(len(spans), len(spans))
    inside = ((spans[:, :1] <= at) & (at <= spans[:, 1:])).double()
    some = inside @ mask.any(dim=0).double() @ inside.T > 0
    every = inside @ (~mask.all(dim=0)).double() @ inside.T == 0
    for name, wrong in (("nothing", (told == 0) & some), ("everything", (told == 2) & ~every)):  # noqa: PLR2004
        if bool(wrong.any()):
            q, k = (spans[i].tolist() for i in wrong.nonzero()[0])
            raise AssertionError(f"queries {q}, keys {k}: said to hold {name}")


def parts_make_the_pattern(case: Case) -> None:
    """Its terms, its heads and what it is among every second position tell the same pattern."""
    pattern, length, heads = case.spec.pattern, case.length, case.spec.num_heads
    mask = pattern.mask(length, length)
    terms = torch.stack([_heads(term.mask(length, length)).any(dim=0) for term in pattern.terms()])
    assert_close(terms.any(dim=0), _heads(mask).any(dim=0), "exact")
    own = torch.stack([one.mask(length, length) for one in pattern.of_heads(heads)])
    assert_close(own, _heads(mask).expand_as(own), "exact")
    for first in (0, 1):
        among = pattern.every(2, first).mask(*2 * [len(range(first, length, 2))])
        assert_close(among, mask[..., first::2, first::2], "exact")


def one_by_one(pattern: Pattern, length: int) -> Tensor:
    """Return the mask [T, T] or [H, T, T], each pair asked by itself."""
    single = [
        [pattern.allowed(torch.tensor([[q]]), torch.tensor([[k]])) for k in range(length)]
        for q in range(length)
    ]
    return torch.cat([torch.cat(row, dim=-1) for row in single], dim=-2)


def _heads(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 3 else mask[None]  # noqa: PLR2004


CHECKS = (
    mask_is_the_predicate,
    causal_patterns_look_back,
    spacing_is_kept,
    pairs_are_counted,
    layout_is_the_mask,
    bounds_are_never_wrong,
    parts_make_the_pattern,
)
