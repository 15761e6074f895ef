"""A window of W keys at length T takes O(T W) of work and memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from suffice import attend
from suffice.patterns import Causal, Window
from suffice.testing import normal


def effort(length, pattern):
    """Numbers that all operations read, pairs of fused kernels too; and the largest tensor.

    The profiler also sees what happens inside operators of the library's own.
    """
    q, k, v = (normal(1, 2, length, 8, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    q.requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        attend(q, k, v, pattern=pattern).sum().backward()
    read, largest = 0, 0
    for event in seen.events():
        shapes = [shape for shape in event.input_shapes if shape]
        sizes = [math.prod(shape) for shape in shapes]
        if "scaled_dot_product" in event.name and len(shapes) > 1:
            sizes.append(math.prod(shapes[0][:-1]) * shapes[1][-2])
        read, largest = read + sum(sizes), max(largest, *sizes, 0)
    return read, largest


@pytest.mark.parametrize("pattern", [Window(16), Window(16) & Causal()], ids=repr)
def test_work_and_memory_grow_with_the_length_not_with_its_square(pattern):
    """Four times the length: about four times as much, where a square would give 16."""
    effort(64, pattern)
    (some, small), (more, large) = (effort(n, pattern) for n in (1024, 4096))
    assert 0 < some < more <= 5 * some
    assert large <= 5 * small
    assert large < 4096 * 4096 / 8
