"""torch's flex_attention with a BlockMask, compiled; on a CPU it has no backward pass.

Compiling takes place in the check, before anything is timed.
"""

from __future__ import annotations

import shutil
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.contest import Absent, Side, timed
from benchmarks.exact import check, rows_of
from suffice.ops import AttentionCall


def side(inputs: tuple[Tensor, ...], problem: AttentionCall) -> Side:
    """Return flex_attention on q, k, v under the problem's pattern, which heads share.

    Raises:
        Absent: without a C++ compiler.
    """
    if not shutil.which("g++") and not shutil.which("clang++"):
        raise Absent("torch.compile finds no C++ compiler; install g++")
    pattern, length = problem.pattern, problem.keys

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return pattern.allowed(query, key)

    blocks = create_block_mask(allowed, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, block_mask=blocks)

    exact = partial(rows_of, problem=problem)
    return Side(
        name="flex_attention",
        call=timed(compute, inputs, backward=False),
        check=partial(check, compute, exact, inputs, backward=False, n=length),
    )
