"""Attention as a function of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.errors import ConfigError, ShapeError
from suffice.kernels import Softmax
from suffice.ops import reference
from suffice.ops.call import AttentionCall, MaskInputs, carries_tangents, transform_depth
from suffice.ops.dispatch import PLANS, plan
from suffice.ops.op import NO_PARTS, Parts
from suffice.patterns import Full, Pattern
from suffice.positions import NoPosition
from suffice.utils.records import is_number
from suffice.utils.torch_compat import check, check_mask, refuse_fork

SOFTMAX, NO_POSITION, NO_MASKS = Softmax(), NoPosition(), MaskInputs()
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    pattern: Pattern = Full(),  # noqa: B008 - frozen
    valid: Tensor | None = None,
    segments: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """Return softmax attention over the keys each query may see.

    Everything that restricts ANDs: pattern, valid, segments and mask. A query with no key left
    gives exactly 0, with gradient 0. Keys and values that no query may see are never read.

    Args:
        q: queries [B, H, T, D].
        k: keys [B, G, S, D]; G divides H, query head h reads key/value head h // (H / G).
        v: values [B, G, S, E].
        pattern: keys that each query may see; the queries stand last among the keys.
        valid: bool [B, S], True = a real key, False = padding.
        segments: documents of the queries and of the keys, int [B, T] and [B, S]; a query sees
            keys of its own document.
        mask: bool [B or 1, H or 1, T, S], True = may attend.
        scale: factor of the products, a finite number; None: 1 / sqrt(D).
        cap: bound of the scaled products, see `Softmax`; None disables it.
        sinks: [H], a logit of each head that belongs to no key, in the dtype of q; None: no sinks.
        impl: "auto" or an op by name (`suffice.ops.OPS`).

    Returns:
        Outputs [B, H, T, E].

    Raises:
        ShapeError: if shapes do not fit.
        MaskError: if valid or mask is not boolean.
        ConfigError: for a scale that is not finite, dtypes that differ or are not floating,
            tensors on different devices, or a pattern made for another number of heads.
        UnsupportedError: if the op named cannot compute this.

    Example:
        >>> from suffice.patterns import Causal
        >>> q = torch.zeros(1, 1, 2, 3)
        >>> attend(q, torch.zeros(1, 1, 3, 3), torch.eye(3)[None, None], pattern=Causal())[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    if valid is segments is mask is None and _is_usual(q, k, v, pattern, scale):
        call, masks = _usual_call(q, k, v, pattern, scale), NO_MASKS
    else:
        call, masks = _describe(q, k, v, pattern, valid, segments, mask, scale)
    if cap is None and sinks is None:
        return plan(call, impl)(q, k, v, masks, call)
    if sinks is not None:
        check("sinks", sinks, (q.shape[1],), hint="One logit for each head.")
    call = replace(call, kernel=Softmax(sink=sinks is not None, cap=cap))
    return plan(call, impl)(
        q, k, v, masks, call, Parts(learned={} if sinks is None else {"sinks": sinks})
    )


def weights(
    q: Tensor,
    k: Tensor,
    *,
    pattern: Pattern = Full(),  # noqa: B008 - frozen
    valid: Tensor | None = None,
    segments: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return the weights [B, H, T, S] that `attend` gives the values, computed in float64.

    Rows sum to 1, or to exactly 0 for a query that may see no key. Arguments as `attend`.
    """
    call, masks = _describe(q, k, k, pattern, valid, segments, mask, scale)
    return reference.weights_of_rows(q, masks.clean(k, k)[0], masks, call, NO_PARTS).to(q.dtype)


def _is_usual(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float | None) -> bool:
    return (
        type(q) is type(k) is type(v) is Tensor
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and q.dtype is k.dtype is v.dtype
        and isinstance(pattern, Pattern)
        and (scale is None or type(scale) is float)
        and not torch.compiler.is_compiling()
    )


_usual_calls: dict[tuple[object, ...], AttentionCall] = {}


def _usual_call(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float | None
) -> AttentionCall:
    refuse_fork()
    shapes = q.shape, k.shape, v.shape
    context = torch.is_grad_enabled(), carries_tangents(), transform_depth() > 0
    key = (*shapes, q.dtype, pattern, scale, *context)
    call = _usual_calls.get(key)
    if call is None:
        call, _ = _describe(q, k, v, pattern, None, None, None, scale)
        if len(_usual_calls) >= PLANS:
            _usual_calls.clear()
        _usual_calls[key] = call
    return call


def _describe(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    valid: Tensor | None,
    segments: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    scale: float | None,
) -> tuple[AttentionCall, MaskInputs]:
    refuse_fork()
    _check_shapes(q, k, v)
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    if not q.dtype is k.dtype is v.dtype:
        raise ConfigError(
            f"q, k and v have dtypes {q.dtype}, {k.dtype} and {v.dtype}; give one dtype."
        )
    if q.dtype not in DTYPES:
        legal = ", ".join(str(dtype) for dtype in DTYPES)
        raise ConfigError(f"q, k and v have dtype {q.dtype}; give one of {legal}.")
    on_cpu = q.is_cpu and k.is_cpu and v.is_cpu  # at a third of the cost of comparing devices
    if not on_cpu and not q.device == k.device == v.device:
        raise ConfigError(
            f"q, k and v are on {q.device}, {k.device} and {v.device}; move them to one device."
        )
    _check_settings(pattern, heads, scale)
    masks = NO_MASKS
    if not valid is segments is mask is None:
        masks = restriction(batch, heads, queries, keys, valid=valid, segments=segments, mask=mask)
    plain = masks is NO_MASKS
    call = AttentionCall.here(
        queries=queries,
        keys=keys,
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=width,
        value_dim=v.shape[3],
        scale=width**-0.5 if scale is None else scale,
        pattern=pattern,
        kernel=SOFTMAX,
        position=NO_POSITION,
        plain=plain or masks.plain,
        pairwise=not plain and masks.pairwise,
        padding=not plain and masks.only_pads(pattern),
        dropping=False,
        device="cpu" if on_cpu else q.device.type,
        dtype=q.dtype,
    )
    return call, masks


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor):
        of_q, of_k, of_v = q.shape, k.shape, v.shape
        fits = len(of_q) == len(of_k) == len(of_v) == 4 and of_k[:3] == of_v[:3]
        fits = fits and of_q[0] == of_k[0] and of_q[3] == of_k[3]
        if fits and of_q[1] * of_q[3] * of_k[1] and of_q[1] % of_k[1] == 0:
            return  # quickly, as calls with masks and those on a GPU come here
    check("q", q, (None, None, None, None), hint="Give heads as [B, H, T, D].")
    batch, heads, _, width = q.shape
    hint = "Give heads as [B, H, T, D], the sequence on the third axis."
    check("k", k, (batch, None, None, width), hint=hint)
    groups, keys = k.shape[1:3]
    check("v", v, (batch, groups, keys, None), hint=hint)
    if groups == 0 or heads % groups:
        raise ShapeError(
            f"{groups} key/value heads do not divide {heads} query heads; each key/value head "
            "serves the same number of query heads."
        )
    raise ShapeError(f"q has shape {list(q.shape)}; give at least one head of one feature.")


def _check_settings(pattern: Pattern, heads: int, scale: float | None) -> None:
    if not isinstance(pattern, Pattern):
        raise ConfigError(
            f"pattern={pattern!r} is not a pattern; give an instance such as Full() or Causal()."
        )
    if pattern.heads not in (None, heads):
        raise ConfigError(f"pattern={pattern!r} is made for {pattern.heads} heads, not {heads}.")
    if scale is None:
        return
    if not is_number(scale):
        raise ConfigError(
            f"scale={scale!r:.60} is not a finite number; a learned one goes into q, as q * scale."
        )


def restriction(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    *,
    valid: Tensor | None,
    segments: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
) -> MaskInputs:
    """Check the data that mask a call and return them together."""
    if valid is not None:
        check_mask("valid", valid)
        check("valid", valid, (batch, keys), hint="One entry per key, True = a real key.")
    if mask is not None:
        check_mask("mask", mask)
        legal = [(b, h, queries, keys) for b in {batch, 1} for h in {heads, 1}]
        hint = "For padding [B, S] give valid=, for documents give segments=."
        check("mask", mask, *sorted(legal, reverse=True), hint=hint)
    if segments is None:
        return NO_MASKS if valid is mask is None else MaskInputs(valid=valid, mask=mask)
    if not isinstance(segments, tuple) or len(segments) != 2:
        raise ConfigError(
            "segments are a pair (q_segments, k_segments), documents of the queries and of the "
            f"keys; got a {type(segments).__name__}."
        )
    if any(part is None for part in segments):
        if segments[0] is segments[1]:
            return MaskInputs(valid=valid, mask=mask)
        raise ConfigError(
            "segments of the queries and of the keys go together: give (q_segments, k_segments)."
        )
    _check_documents("segments of the queries", segments[0], (batch, queries))
    _check_documents("segments of the keys", segments[1], (batch, keys))
    return MaskInputs(valid=valid, mask=mask, q_segments=segments[0], k_segments=segments[1])


def _check_documents(name: str, segments: Tensor, shape: tuple[int, int]) -> None:
    check(name, segments, shape, hint="One document number per position.")
    if segments.dtype.is_floating_point or segments.dtype is torch.bool:
        raise ConfigError(f"{name} have dtype {segments.dtype}; document numbers are integers.")
