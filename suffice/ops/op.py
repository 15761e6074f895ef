"""One way to compute an attention, as an object: its name, its function, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from suffice.kernels import FeatureMap
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.records import Axis
from suffice.torch_compat import finite


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
Run = Callable[[Tensor, Tensor, Tensor, MaskInputs, AttentionCall, Parts], Tensor]


@dataclass(frozen=True)
class Op:
    """One way to compute an attention.

    Args:
        name: how a user asks for it: impl="name".
        about: one sentence for explain().
        run: (q [B, H, T, D], k [B, G, S, D], v [B, G, S, E], where, problem, parts) -> out
            [B, H, T, E]; keys and values that no query may see are finite (`MaskInputs.clean`).
        refuses: problem -> why this op cannot compute it, a sentence each; empty = it can.
        masks_nonfinite: True if the op itself keeps hidden NaN and Inf from what it returns.
        trains: False if it has no gradients, and refuses to run where they are recorded.
    """

    name: str
    about: str
    run: Run
    refuses: Callable[[AttentionCall], list[str]]
    masks_nonfinite: bool = False
    trains: bool = True

    def cleaned(self, k: Tensor, v: Tensor, where: MaskInputs) -> tuple[Tensor, Tensor]:
        """Return keys and values with what no query may see zeroed, if the op needs that."""
        if self.masks_nonfinite and not torch.compiler.is_compiling():
            return k, v
        return where.clean(k, v)


def weighs_no_pairs(problem: AttentionCall) -> list[str]:
    """Return why an op over weighted pairs cannot compute this; empty if it can."""
    if problem.kernel.weighs_pairs:
        return []
    return [f"{type(problem.kernel).__name__} gives pairs no weights of their own"]


def run(
    op: Op, q: Tensor, k: Tensor, v: Tensor, where: MaskInputs, problem: AttentionCall, parts: Parts
) -> Tensor:
    """Return what the op computes, NaN for exactly the queries that may see something non-finite.

    An op gives a hidden value the weight 0, and 0 * NaN is NaN. Where keys are hidden from some
    queries, non-finite keys are therefore taken out and the queries that may see them marked.
    """
    if problem.unrestricted or op.masks_nonfinite or finite(k, v):
        return op.run(q, k, v, where, problem, parts)
    return marked(op, q, k, v, where, problem, parts)


def marked(
    op: Op, q: Tensor, k: Tensor, v: Tensor, where: MaskInputs, problem: AttentionCall, parts: Parts
) -> Tensor:
    """Return the same where some key or value is not finite."""
    bad = ~(k.isfinite().all(dim=-1) & v.isfinite().all(dim=-1))  # [B, G, S]
    k, v = (t.masked_fill(bad[..., None], 0.0) for t in (k, v))
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, q.device)
    seen = (allowed & bad.repeat_interleave(problem.group, dim=1)[:, :, None]).any(-1, keepdim=True)
    return op.run(q, k, v, where, problem, parts).masked_fill(seen, torch.nan)


def is_transformed(*tensors: Tensor) -> bool:
    """Return whether operations on these tensors are traced, vectorised or forward-differentiated.

    Then they must be ones torch knows, none may depend on numbers, and none may write in place of
    an argument.
    """
    return (
        torch.compiler.is_compiling()
        or forward()
        or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
    )


def forward() -> bool:
    """Return whether derivatives are carried along forwards, as torch's fused kernel cannot."""
    return forward_ad._current_level >= 0


_known: dict[tuple[str, str], Axis] = {}  # what the texts given to operators stand for


def text_of(value: Axis) -> str:
    """Return the value as JSON."""
    if not torch.compiler.is_compiling():
        _known[value.family, value.text] = value
    return value.text


def value_of(family: type, text: str):  # noqa: ANN201 - a value of the family
    """Return the value of a text."""
    return _known.get((family.family, text)) or family.from_json(json.loads(text))
