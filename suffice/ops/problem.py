"""What an op is asked to compute, without the tensors: everything its choice may depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from suffice.kernels import Kernel, Softmax
from suffice.ops.where import Where
from suffice.patterns import Causal, Full, Pattern


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One attention call.

    Args:
        queries: T, positions.
        keys: S, positions.
        num_heads: query heads, H.
        num_kv_heads: key/value heads, G; divides H.
        head_dim: width of queries and keys, D.
        value_dim: width of values, E.
        scale: factor of the query-key products.
        pattern: which keys a query may see.
        kernel: how products become weights.
        plain: True if no valid, segments, mask or positions restrict the pattern further.
        dropping: True if weights are dropped (training with dropout).
        device: device type, "cpu" or "cuda".
    """

    queries: int
    keys: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    pattern: Pattern = Full()
    kernel: Kernel = Softmax()
    plain: bool = True
    dropping: bool = False
    device: str = "cpu"

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def unrestricted(self) -> bool:
        """True if every query sees every key."""
        last_only = self.queries == 1 and isinstance(self.pattern, Causal)
        return self.plain and (isinstance(self.pattern, Full) or last_only)

    @property
    def triangular(self) -> bool:
        """True if the pattern is the plain lower triangle."""
        return self.plain and isinstance(self.pattern, Causal) and self.queries == self.keys


def weighs_no_pairs(problem: Problem) -> list[str]:
    """Return why an op over weighted pairs cannot compute this; empty if it can."""
    if problem.kernel.weighs_pairs:
        return []
    return [f"{type(problem.kernel).__name__} gives pairs no weights of their own"]


Drop = Callable[[Tensor], Tensor]
Run = Callable[[Tensor, Tensor, Tensor, Where, Problem, Drop], Tensor]


@dataclass(frozen=True)
class Op:
    """One way to compute an attention.

    Args:
        name: how a user asks for it: impl="name".
        about: one sentence for explain().
        run: (q [B, H, T, D], k [B, G, S, D], v [B, G, S, E], where, problem, drop) -> [B, H, T, E];
            keys and values that no query may see are finite (`Where.clean`).
        refuses: problem -> why this op cannot compute it, a sentence each; empty = it can.
    """

    name: str
    about: str
    run: Run
    refuses: Callable[[Problem], list[str]]
