"""local-attention (lucidrains): a causal window of buckets, each reading itself and the one before.

Its exact window of W shows W keys before the query and the query: W + 1 keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from benchmarks.contest import Side, timed
from benchmarks.exact import check, rows_of
from benchmarks.peers.installed import package
from suffice.ops import AttentionCall
from suffice.patterns import Causal, Window


def side(inputs: tuple[Tensor, ...], problem: AttentionCall, *, size: int, backward: bool) -> Side:
    """Return LocalAttention on q, k, v, with size + 1 keys a query.

    Raises:
        Absent: if it is not installed.
    """
    module = package("local-attention", "local_attention")
    attention = module.LocalAttention(size, causal=True, exact_windowsize=True)
    wider = replace(problem, pattern=Window(size + 1) & Causal())
    exact = partial(rows_of, problem=wider)
    return Side(
        name="local-attention",
        call=timed(attention, inputs, backward=backward),
        check=partial(check, attention, exact, inputs, backward=backward, n=problem.keys),
    )
