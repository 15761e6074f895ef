"""The interface of ops, each one way to compute an attention, and helpers they share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from suffice.errors import UnsupportedError
from suffice.kernels import FeatureMap, Softmax
from suffice.ops.call import AttentionCall, MaskInputs, inside_transform
from suffice.utils.records import Axis, V
from suffice.utils.torch_compat import finite

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef


@dataclass(frozen=True)
class Parts:
    """Modules of a layer that an op calls."""

    # weights [B, H, T, S] -> the same with some dropped, while training with dropout
    drop: Callable[[Tensor], Tensor] = lambda weights: weights
    features: FeatureMap | None = None  # of a kernel that has one
    learned: Mapping[str, Tensor] = field(default_factory=dict)  # by the kernel, by name

    @property
    def sinks(self) -> Tensor | None:
        """The logits [H] of a softmax that belong to no key."""
        return self.learned.get("sinks")


NO_PARTS = Parts()
TRUSTED = 32  # keys; a row of fewer, all NaN, comes as 0 from torch's kernels for CPUs
Run = Callable[[Tensor, Tensor, Tensor, MaskInputs, AttentionCall, Parts], Tensor]


@dataclass(frozen=True)
class Op:
    """One way to compute an attention."""

    name: str  # value of `impl` that selects it
    about: str  # description for explain()
    # (q [B, H, T, D], k [B, G, S, D], v [B, G, S, E], ...) -> [B, H, T, E]; hidden k, v are finite
    run: Run
    # reasons why it cannot compute a call, a sentence each
    refuses: Callable[[AttentionCall], list[str]]
    masks_nonfinite: bool = False  # whether it keeps masked NaN and Inf out of its outputs itself
    trains: bool = True  # False: without gradients; it refuses to run where they are recorded

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masks: MaskInputs,
        call: AttentionCall,
        parts: Parts = NO_PARTS,
    ) -> Tensor:
        """Return the outputs [B, H, T, E], NaN for exactly the queries that see a NaN or Inf.

        An op gives a masked value the weight 0, and 0 * NaN is NaN: keys and values that no query
        may see are set to 0; where others are not finite, `run_nonfinite` takes them out.
        """
        if not self.trains and needs_gradient(q, k, v):
            raise UnsupportedError(
                f"impl={self.name!r} has no gradients; call it under torch.no_grad() or "
                "torch.inference_mode(), or use impl='auto'."
            )
        if not self.masks_nonfinite or call.compiling:
            k, v = masks.clean(k, v)
        trusted = call.unrestricted and (call.compiling or call.keys >= TRUSTED)
        if self.masks_nonfinite or trusted or finite(k, v):
            return self.run(q, k, v, masks, call, parts)
        return run_nonfinite(self, q, k, v, masks, call, parts)


def run_nonfinite(
    op: Op, q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Run an op without the keys that are not finite; NaN for the queries that may see one."""
    bad = ~(k.isfinite().all(dim=-1) & v.isfinite().all(dim=-1))  # [B, G, S]
    k, v = (t.masked_fill(bad[..., None], 0.0) for t in (k, v))
    allowed = masks.allowed(call.pattern, call.queries, call.keys, q.device)
    sees_bad = (allowed & bad.repeat_interleave(call.group, dim=1)[:, :, None]).any(-1, True)
    return op.run(q, k, v, masks, call, parts).masked_fill(sees_bad, torch.nan)


def refuses_kernel(call: AttentionCall, *, sink: bool = False, cap: bool = False) -> list[str]:
    """Refuse every kernel but a softmax, and sinks and caps where an op has none."""
    kernel = call.kernel
    if type(kernel) is not Softmax:
        name = type(kernel).__name__
        weighs = kernel.lane == "pairs"
        return [
            f"it computes Softmax, not {name}"
            if weighs
            else f"{name} gives pairs no weights of their own"
        ]
    reasons = []
    if kernel.sink and not sink:
        reasons.append("it has no logits that belong to no key")
    if kernel.cap is not None and not cap:
        reasons.append("it does not bound the products")
    return reasons


def with_sinks(out: Tensor, logs: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add sinks [H] to outputs [B, H, T, E], in place, and to logs [B, H, T] of total weights."""
    total = torch.logaddexp(logs, sinks.to(logs.dtype)[None, :, None])
    share = (logs - total).exp()
    return out.mul_(share.to(out.dtype)[..., None]), total


def slope_of_sinks(grad: Tensor, out: Tensor, logs: Tensor, sinks: Tensor) -> Tensor:
    """Return the gradient of `sinks` [H], given what `with_sinks` returned."""
    weights = (sinks.to(logs.dtype)[None, :, None] - logs).exp()
    moved = (grad.to(logs.dtype) * out.to(logs.dtype)).sum(dim=-1)
    return -(weights * moved).sum(dim=(0, 2)).to(sinks.dtype)


def refuses_transforms(call: AttentionCall) -> list[str]:
    """Refuse transforms, for which torch has no rules beyond its own operations."""
    if not call.transformed:
        return []
    return ["torch.func and forward-mode differentiation have no rules for its kernels"]


def needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def dense_rows(x: Tensor) -> Tensor:
    """Return x with its last axis dense, as kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_rows_first(x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty [B, heads, T, width] like x that lies in memory as [B, T, heads, width]."""
    batch, heads, length, _ = x.shape
    strides = (length * heads * width, width, heads * width, 1)
    if dtype is None and width == x.shape[3] and x.stride() == strides:
        return torch.empty_like(x)  # in a third of the time
    return x.new_empty_strided((batch, heads, length, width), strides, dtype=dtype)


Slopes = Callable[..., tuple[Tensor | None, ...]]


def register_attention(
    forward: CustomOpDef, backward: CustomOpDef, slopes: Slopes = lambda *_: ()
) -> None:
    """Register shapes of two operators, and the second as the gradient of the first.

    `forward`: (q, k, v, *tensors or None, *settings) -> outputs [B, H, T, E], totals [B, H, T].
    `backward`: (gradient of the outputs, q, k, v, outputs, totals, *tensors, *settings) ->
    gradients of q, k and v; `slopes`: (that gradient, outputs, totals, *tensors) -> of the tensors.
    """

    @forward.register_fake
    def _(q, k, v, *others):
        del k, others
        exact = torch.promote_types(q.dtype, torch.float32)
        return empty_rows_first(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=exact)

    @backward.register_fake
    def _(gradient, q, k, v, *others):
        del gradient, others
        return tuple(empty_rows_first(x, x.shape[3]) for x in (q, k, v))

    def setup_context(ctx, inputs, output) -> None:
        tensors = [x for x in inputs if x is None or isinstance(x, Tensor)]
        ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
        ctx.settings = inputs[len(tensors) :]

    def differentiate(ctx, gradient, _):
        gradients = backward(gradient, *ctx.saved_tensors, *ctx.settings)
        others = slopes(gradient, *ctx.saved_tensors[3:])
        unneeded = len(ctx.needs_input_grad) - 3 - len(others)
        return *gradients, *others, *[None] * unneeded

    forward.register_autograd(differentiate, setup_context=setup_context)


def is_traced() -> bool:
    """Return True where torch must see operators: in a graph, or under a dispatch mode."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def is_transformed() -> bool:
    """Return True while torch traces, vmaps or differentiates the call by a transform.

    Then only operations that torch knows may run, no branch may depend on the content of tensors,
    and no argument may be written to.
    """
    return torch.compiler.is_compiling() or inside_transform()


_values: dict[tuple[str, str], Axis] = {}  # by family and JSON


def text_of(value: Axis) -> str:
    """Return an axis value as JSON, the form that registered operators accept."""
    if not torch.compiler.is_compiling():
        _values[value.family, value.text] = value
    return value.text


def value_of(family: type[V], text: str) -> V:
    value = _values.get((family.family, text)) or family.from_json(json.loads(text))
    return cast("V", value)
