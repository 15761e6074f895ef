"""One way to compute an attention, as an object: its name, its function, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def keep(weights: Tensor) -> Tensor:
    """Return the weights: nothing is dropped."""
    return weights


@dataclass(frozen=True)
class Parts:
    """What a layer owns and an op needs.

    Args:
        drop: weights [B, H, T, S] -> the same with some dropped, while training with dropout.
        features: the feature map of a kernel that has one.
    """

    drop: Callable[[Tensor], Tensor] = keep
    features: FeatureMap | None = None


NO_PARTS = Parts()
Run = Callable[[Tensor, Tensor, Tensor, Where, Problem, Parts], Tensor]


@dataclass(frozen=True)
class Op:
    """One way to compute an attention.

    Args:
        name: how a user asks for it: impl="name".
        about: one sentence for explain().
        run: (q [B, H, T, D], k [B, G, S, D], v [B, G, S, E], where, problem, parts) -> out
            [B, H, T, E]; keys and values that no query may see are finite (`Where.clean`).
        refuses: problem -> why this op cannot compute it, a sentence each; empty = it can.
        looks: True if the op itself keeps hidden NaN and Inf from what it returns.
        trains: False if it has no gradients, and refuses to run where they are recorded.
    """

    name: str
    about: str
    run: Run
    refuses: Callable[[Problem], list[str]]
    looks: bool = False
    trains: bool = True

    def cleaned(self, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """Return keys and values with what no query may see zeroed, if the op needs that."""
        if self.looks and not torch.compiler.is_compiling():
            return k, v
        return where.clean(k, v)


def weighs_no_pairs(problem: Problem) -> list[str]:
    """Return why an op over weighted pairs cannot compute this; empty if it can."""
    if problem.kernel.weighs_pairs:
        return []
    return [f"{type(problem.kernel).__name__} gives pairs no weights of their own"]
