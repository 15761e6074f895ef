"""Window W = W keys, the query's own included, in every op, at any length, in O(T W)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from suffice import attend
from suffice.patterns import Causal, Window
from suffice.testing import normal


def near(size, is_causal, queries, keys):
    """allowed / num_allowed as numbers, rows of who sees nothing 0; from the distance alone."""
    distance = (torch.arange(queries) + keys - queries)[:, None] - torch.arange(keys)
    table = (distance < size) & ((distance >= 0) if is_causal else (distance > -size))
    return table.double() / table.sum(dim=1, keepdim=True).clamp(min=1)


def patterns(size, is_causal):
    return Window(size) & Causal() if is_causal else Window(size)


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
