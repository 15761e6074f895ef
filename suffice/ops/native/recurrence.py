"""Recurrences in native CPU kernels: one token, or chunks of a sequence, and their gradients.

What `suffice.ops.recurrence` computes, in float32. Between chunks a state stays in the cache; the
backward pass computes the states again. Where every feature decays by itself, positions go one by
one.

One token of a layer is one call: its convolution, its gates, the norms of keys and queries, and the
state, which changes in place.

Eager calls go to the kernels directly. Where torch has to see the call (a graph, a mode that
counts) the same kernels are a registered operator.

Letters: B batch, H heads, T positions, D key width, E value width.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from struct import Struct

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.errors import UnsupportedError
from suffice.ops.call import AttentionCall
from suffice.ops.native import library as native
from suffice.ops.native.attention import refuses_native
from suffice.ops.native.library import library
from suffice.ops.op import Op, dense_rows, empty_rows_first, is_traced, needs_gradient
from suffice.ops.recurrence import Sequence, attend

TENSORS = Struct(f"{len(native.RecurrentTensors._fields_)}P")  # packs them at once
INPUTS = ("q", "k", "v", "decay", "beta")
FORWARD, BACKWARD = (*INPUTS, "out"), (*INPUTS, "out_grad", *(f"grad_{name}" for name in INPUTS))


def refuses(call: AttentionCall) -> list[str]:
    """Refuse other kernels, transforms, other devices and dtypes."""
    if call.kernel.lane != "recurrence":
        return [f"{type(call.kernel).__name__} is not a recurrence"]
    return refuses_native(call, (torch.float32, torch.float16, torch.bfloat16))


NATIVE_RECURRENCE = Op(
    "native_recurrence", "the library's own kernels of recurrences, on a CPU", attend, refuses
)


def refuses_token(call: AttentionCall) -> list[str]:
    """Refuse more than one token, gradients and graphs, too."""
    reasons = refuses(call)
    if call.dtype is not torch.float32:
        reasons.append(f"its kernel reads float32, not {call.dtype}")
    if call.queries != 1:
        reasons.append(f"it reads one token, not {call.queries}")
    if call.grad or call.compiling:
        reasons.append("it changes a state in place, which gradients and graphs cannot follow")
    return reasons


TOKEN = Op(
    "native_token", "one token of a recurrent layer in one native kernel", attend, refuses_token
)


@lru_cache(maxsize=256)
def token_structure(*sizes: float) -> bytes:
    """Return the bytes of `library.RecurrentToken`, made once for a layer."""
    return bytes(native.RecurrentToken(*sizes))


def token(structure: bytes, rows: int, *tensors: Tensor | None) -> None:
    """Run the kernel on tensors in the order of `library.RecurrentTensors`; all are contiguous."""
    places = TENSORS.pack(*[0 if x is None else x.data_ptr() for x in tensors])
    library().suffice_recurrent_token(structure, places, rows, torch.get_num_threads())


def scan(data: Sequence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the state [B, H, D, E] after them; all float32."""
    *inputs, documents = data
    if data.beta is not None and data.log_decay is not None and data.log_decay.shape[3] > 1:
        raise UnsupportedError("decays of features go without beta; use suffice.ops.recurrence.")
    if is_traced():
        return _recurrence(*inputs, documents, state)
    args = _dense(*inputs, documents, state)
    if needs_gradient(*(x for x in (*inputs, state) if x is not None)):
        return _Recurrence.apply(*args)
    return forward(*args)


def _dense(q, k, v, decay, beta, documents, state) -> tuple[Tensor | None, ...]:  # noqa: ANN001
    rows = (None if x is None else dense_rows(x) for x in (q, k, v, decay, beta))
    documents = None if documents is None else documents.long().contiguous()
    return *rows, documents, state.contiguous()


@lru_cache(maxsize=256)
def _structure(
    names: tuple[str, ...], sizes: tuple[int, ...], *strides: tuple[int, ...] | None
) -> native.Recurrence:
    """Return the structure without documents; one-token calls find it made."""
    structure = native.Recurrence(*sizes)
    for name, steps in zip(names, strides, strict=True):
        if steps is not None:
            setattr(structure, name, native.Strides(*steps[:3]))
    return structure


def _described(
    names: tuple[str, ...], documents: Tensor | None, *tensors: Tensor | None
) -> native.Recurrence:
    q, v, decay = tensors[0], tensors[2], tensors[3]
    sizes = (*q.shape, v.shape[3], 0 if decay is None else decay.shape[3])
    structure = _structure(names, sizes, *[None if x is None else x.stride() for x in tensors])
    if documents is not None:
        structure = native.Recurrence.from_buffer_copy(structure)
        structure.documents = documents.data_ptr()
    return structure


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the state after them; the last axis of all tensors is dense."""
    out, end = empty_rows_first(q, v.shape[3]), torch.empty_like(state)
    if not (out.numel() and q.numel()):
        return out.zero_(), end.copy_(state)
    structure = _described(FORWARD, documents, q, k, v, decay, beta, out)
    places = [None if x is None else x.data_ptr() for x in (q, k, v, decay, beta, state, out, end)]
    library().suffice_recur(ctypes.byref(structure), *places, torch.get_num_threads())
    return out, end


def backward(
    grad: Tensor,
    grad_end: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: Tensor | None,
    state: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, the decays, beta and the state, None for those absent."""
    inputs = (q, k, v, decay, beta)
    grads = [None if x is None else empty_rows_first(x, x.shape[3]) for x in inputs]
    if not (grad.numel() and q.numel()):
        return *(None if x is None else x.zero_() for x in grads), grad_end.clone()
    grad_state = torch.empty_like(state)
    structure = _described(BACKWARD, documents, *inputs, grad, *grads)
    places = native.RecurrenceGradients(*map(_at, (grad, grad_end, *grads, grad_state)))
    library().suffice_recur_back(
        ctypes.byref(structure),
        *map(_at, (*inputs, state)),
        ctypes.byref(places),
        torch.get_num_threads(),
    )
    return *grads, grad_state


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*args)
        return forward(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, grad_end: Tensor):
        grads = backward(dense_rows(grad), grad_end.contiguous(), *ctx.saved_tensors)
        return *grads[:5], None, grads[5]


@torch.library.custom_op("suffice::native_recurrence", mutates_args=())
def _recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the state [B, H, D, E] after them."""
    return forward(*_dense(q, k, v, decay, beta, documents, state))


@torch.library.custom_op("suffice::native_recurrence_backward", mutates_args=())
def _recurrence_backward(
    grad: Tensor,
    grad_end: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    documents: Tensor | None,
    state: Tensor,
) -> list[Tensor]:
    tensors = _dense(q, k, v, decay, beta, documents, state)
    grads = backward(dense_rows(grad), grad_end.contiguous(), *tensors)
    return [x.contiguous() for x in grads if x is not None]


@_recurrence.register_fake
def _(q, k, v, decay, beta, documents, state):  # noqa: ANN001, ANN202
    del k, decay, beta, documents
    return empty_rows_first(q, v.shape[3]), torch.empty_like(
        state, memory_format=torch.contiguous_format
    )


@_recurrence_backward.register_fake
def _(grad, grad_end, q, k, v, decay, beta, documents, state):  # noqa: ANN001, ANN202
    del grad, grad_end, documents
    return [x.new_empty(x.shape) for x in (q, k, v, decay, beta, state) if x is not None]


def _keep(ctx, inputs, output) -> None:  # noqa: ANN001
    del output
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad, grad_end):  # noqa: ANN001, ANN202
    inputs = ctx.saved_tensors
    grads = iter(_recurrence_backward(grad, grad_end, *inputs))
    return tuple(
        None if x is None or place == len(INPUTS) else next(grads) for place, x in enumerate(inputs)
    )


_recurrence.register_autograd(_differentiate, setup_context=_keep)
