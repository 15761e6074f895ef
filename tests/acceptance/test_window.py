"""Window W = W keys, the query's own included, in every op, at any length, in O(T W)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from suffice import attend
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, normal

from .mechanisms import accepting, named

WINDOWS = (1, 2, 5, 16, 40)


def near(size, is_causal, queries, keys):
    """allowed / num_allowed as numbers, rows of who sees nothing 0; from the distance alone."""
    distance = (torch.arange(queries) + keys - queries)[:, None] - torch.arange(keys)
    table = (distance < size) & ((distance >= 0) if is_causal else (distance > -size))
    return table.double() / table.sum(dim=1, keepdim=True).clamp(min=1)


def read_out(pattern, queries, keys, impl, heads):
    """With q = 0 and V = identity an output row is the row of the mask over its sum."""
    q = torch.zeros(1, heads[0], queries, keys, dtype=torch.float64)
    k = normal(1, heads[1], keys, keys, seed=keys)
    v = torch.eye(keys, dtype=torch.float64).expand(1, heads[1], keys, keys)
    return attend(q, k, v, pattern=pattern, impl=impl)


def patterns(size, is_causal):
    return Window(size) & Causal() if is_causal else Window(size)


CASES = [
    (impl, heads, is_causal)
    for is_causal in (False, True)
    for heads in ((4, 2), (2, 2))
    for impl in ("auto", *accepting(20, 20, heads=heads, pattern=patterns(3, is_causal)))
    if heads[0] > heads[1] or impl == "blocked"
]


def test_several_ops_compute_windows():
    """No op may drop out of these tests unseen."""
    ops = {impl for impl, _, is_causal in CASES if is_causal}
    assert {"auto", "reference", "fused", "matmul", "folded", "blocked"} <= ops


FEWER = ((1, 2), (1, 67), (2, 33), (5, 64), (16, 17), (31, 65), (66, 67))


@pytest.mark.parametrize(("impl", "heads", "is_causal"), CASES)
def test_lengths_and_fewer_queries_than_keys(impl, heads, is_causal):
    """Around the edges of blocks of 16, 32, 64 and 128."""
    cases = [(size, n, n) for size in (1, 64, 100) for n in (129, 300)]
    for size in WINDOWS:
        edges = {1, size, size + 1, 16, 17, 32, 33, 63, 64, 65, 67}
        lengths = sorted(edges.union(range(1 + 2 * WINDOWS.index(size), 67, 10)))
        cases += [(size, n, n) for n in lengths] + [(size, *pair) for pair in FEWER]
    for size, queries, keys in cases:
        with named(size, queries, keys):
            got = read_out(patterns(size, is_causal), queries, keys, impl, heads)
            assert_close(got, near(size, is_causal, queries, keys).expand(1, heads[0], -1, -1))


@pytest.mark.parametrize(("impl", "heads", "is_causal"), CASES)
def test_every_op_attends_and_learns_alike(impl, heads, is_causal):
    """With real scores: outputs and gradients equal those of the window as a dense mask."""
    for length in (1, 17, 67, 200):
        inputs = [normal(2, h, length, 4, seed=h) for h in (heads[0], heads[1], heads[1])]
        mask = (near(16, is_causal, length, length) > 0).expand(2, 1, -1, -1)
        results = []
        for call in (
            {"pattern": patterns(16, is_causal), "impl": impl},
            {"mask": mask, "impl": "reference"},
        ):
            leaves = [x.clone().requires_grad_() for x in inputs]
            out = attend(*leaves, **call)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        for got, want in zip(*results, strict=True):
            with named(length):
                assert_close(got, want)


def effort(length, size, is_causal):
    """Numbers that all operations read, pairs of fused kernels too; and the largest tensor.

    The profiler also sees what happens inside operators of the library's own.
    """
    q, k, v = (normal(1, 2, length, 8, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    q.requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        attend(q, k, v, pattern=patterns(size, is_causal)).sum().backward()
    read, largest = 0, 0
    for event in seen.events():
        shapes = [shape for shape in event.input_shapes if shape]
        sizes = [math.prod(shape) for shape in shapes]
        if "scaled_dot_product" in event.name and len(shapes) > 1:
            sizes.append(math.prod(shapes[0][:-1]) * shapes[1][-2])
        read, largest = read + sum(sizes), max(largest, *sizes, 0)
    return read, largest


@pytest.mark.parametrize("is_causal", [False, True])
def test_work_and_memory_grow_with_the_length_not_with_its_square(is_causal):
    """Four times the length: about four times as much, where a square would give 16."""
    effort(64, 16, is_causal)
    (some, small), (more, large) = (effort(n, 16, is_causal) for n in (1024, 4096))
    assert 0 < some < more <= 5 * some
    assert large <= 5 * small
    assert large < 4096 * 4096 / 8


@pytest.mark.parametrize("is_causal", [False, True])
def test_counted_cost_is_that_of_the_window(is_causal):
    for length, size in [(1, 3), (10, 3), (100, 7), (1000, 64)]:
        want = int((near(size, is_causal, length, length) > 0).sum())
        assert patterns(size, is_causal).pairs(length, length) == want
