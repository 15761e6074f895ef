"""Functions that layers of transformers call for recurrences and convolutions, in our kernels.

Each takes the arguments of the function of transformers that it stands for, and returns the same.
Where a layer passes the documents of packed rows, they are kept apart.

Letters: B batch, H heads, T positions, D key width, E value width, C channels, K taps.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from suffice.kernels.recurrent import EPS, LEAST
from suffice.ops.native import library as native
from suffice.ops.native import recurrence, stock
from suffice.ops.recurrence import Sequence

SILU = ("silu", "swish")
LANES = 16  # the step of the delta rule reads and writes whole registers of a state's rows


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int | None = None,  # noqa: ARG001 - the kernels have their own
    initial_state: Tensor | None = None,
    output_final_state: bool = False,  # noqa: FBT001, FBT002 - the signature of transformers
    use_qk_l2norm_in_kernel: bool = False,  # noqa: FBT001, FBT002
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return outputs [B, T, H, E] in the dtype of the queries, and the state [B, H, D, E] or None.

    Shapes:
        query, key: [B, T, H or fewer, D]; value: [B, T, H, E]; g, beta: [B, T, H];
        initial_state: [B, H, D, E]; cu_seqlens: [documents + 1], with B = 1.
    """
    dtype, heads = query.dtype, value.shape[2]
    q, k, v = query.float(), key.float(), value.float()
    scale = q.shape[-1] ** -0.5
    if use_qk_l2norm_in_kernel:
        q, k = _of_length(q, scale), _of_length(k, 1.0)
    else:
        q = q * scale
    q, k = _shared(q, heads), _shared(k, heads)
    decay = g.float().clamp(min=LEAST)[..., None]
    out, state = _scan(q, k, v, decay, beta.float()[..., None], initial_state, cu_seqlens)
    return out.to(dtype), state if output_final_state else None


def gated_delta_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,  # noqa: FBT001, FBT002
    use_qk_l2norm_in_kernel: bool = False,  # noqa: FBT001, FBT002
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the same for one token, with the state that was given changed in place."""
    inputs = (query, key, value, g, beta, initial_state)
    if (
        initial_state is None
        or not (stock.suits(*inputs) and stock.keeps_no_gradient(*inputs))
        or not initial_state.is_contiguous()
        or query.shape[1] != 1
        or value.shape[3] % LANES
    ):
        return gated_delta_rule(
            query,
            key,
            value,
            g,
            beta,
            None,
            initial_state,
            output_final_state,
            use_qk_l2norm_in_kernel,
            **others,
        )
    state = initial_state if output_final_state else initial_state.clone()
    q, k, v = (x.flatten(2) for x in (query, key, value))
    batch, _, heads, width = key.shape
    structure = native.TokenStep(
        *(batch, value.shape[2], heads, width, value.shape[3]),
        *(x.stride(0) for x in (q, k, v)),
        *(use_qk_l2norm_in_kernel, EPS, width**-0.5),
    )
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    gates = g.clamp(min=LEAST).contiguous(), beta.contiguous()
    stock.call("suffice_delta_step", ctypes.byref(structure), q, k, v, *gates, state, out)
    return out, state if output_final_state else None


def _of_length(x: Tensor, length: float) -> Tensor:
    width = x.shape[-1]
    if stock.suits(x):
        options = {"eps": EPS / width, "offset": length * width**-0.5, "width": width}
        return stock.norm(x.flatten(2), None, **options).view(x.shape)
    return x * (x.square().sum(dim=-1, keepdim=True) + EPS).rsqrt() * length


def _shared(x: Tensor, heads: int) -> Tensor:
    """Return rows [B, T, groups, D] head by head, without a copy where one serves all."""
    each = heads // x.shape[2]
    return x if each == 1 else x[:, :, :, None].expand(-1, -1, -1, each, -1).flatten(2, 3)


def mamba2_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 - the names of transformers
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    chunk_size: int | None = None,  # noqa: ARG001
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,  # noqa: FBT001, FBT002
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,  # noqa: FBT001, FBT002
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return outputs [B, T, H, E], and the state [B, H, E, D] where it is asked for.

    Shapes:
        hidden_states: [B, T, H, E]; dt: [B, T, H]; A, D, dt_bias: [H];
        B, C: [B, T, groups, D]; initial_states: [B, H, E, D]; seq_idx: [B, T].
    """
    heads = hidden_states.shape[2]
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = F.softplus(dt)
    step = dt.clamp(*dt_limit).float()[..., None]
    x = hidden_states.float()
    q, k = (_shared(part.float(), heads) for part in (C, B))
    decay = (A.float()[:, None] * step).clamp(min=LEAST)
    start = None if initial_states is None else initial_states.mT
    out, state = _scan(q, k, x * step, decay, None, start, cu_seqlens, seq_idx)
    if D is not None:
        out = torch.addcmul(out, x, D[:, None])
    return (out, state.mT.contiguous()) if return_final_states else out


def mamba2_step(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,  # noqa: FBT001, FBT002
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Return the output [B, H, E] of one token, and change the state [B, H, E, D] in place."""
    inputs = (state, hidden_states, dt, A, B, C)
    if (
        stock.suits(*inputs)
        and stock.suits_weights(D, dt_bias)
        and stock.keeps_no_gradient(*inputs, D, dt_bias, z)
        and state.is_contiguous()
    ):
        size = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[:, 0]
        size = (F.softplus(size) if dt_softplus else size).contiguous()
        x, keys, queries = (part.flatten(1) for part in (hidden_states, B, C))
        structure = native.TokenStep(
            *(*hidden_states.shape[:2], B.shape[1], B.shape[2], hidden_states.shape[2]),
            *(part.stride(0) for part in (queries, keys, x)),
        )
        rates, skip = A[:, 0, 0].contiguous(), None if D is None else D[:, 0].contiguous()
        out = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
        places = (x, size, rates, keys, queries, skip, state, out)
        stock.call("suffice_mamba2_step", ctypes.byref(structure), *places)
        return out if z is None else out * F.silu(z)
    out, end = mamba2_scan(
        hidden_states[:, None],
        dt[:, None, :, 0],
        A[:, 0, 0],
        B[:, None],
        C[:, None],
        D=None if D is None else D[:, 0],
        dt_bias=None if dt_bias is None else dt_bias[:, 0],
        initial_states=state,
        dt_softplus=dt_softplus,
        return_final_states=True,
    )
    state.copy_(end)
    out = out[:, 0] if z is None else out[:, 0] * F.silu(z)
    return out.to(hidden_states.dtype)


def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    start: Tensor | None,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, T, H, E] and the state [B, H, D, E] of rows [B, T, H, width]."""
    documents = _documents(cu_seqlens, seq_idx, q.shape[1])
    beta = None if beta is None else beta.transpose(1, 2)
    q, k, v, log_decay = (x.transpose(1, 2) for x in (q, k, v, log_decay))
    if start is None:
        start = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    with torch.autocast("cpu", enabled=False):
        out, state = recurrence.scan(
            Sequence(q, k, v, log_decay, beta, documents), start.float().contiguous()
        )
    return out.transpose(1, 2).contiguous(), state


def _documents(cu_seqlens: Tensor | None, seq_idx: Tensor | None, length: int) -> Tensor | None:
    """Return the document of each position, int [B, T], or None for rows of one."""
    if seq_idx is not None:
        return seq_idx.long()
    if cu_seqlens is None:
        return None
    positions = torch.arange(length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].long(), positions, right=True)[None]


def causal_convolution(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Return each channel [B, C, T] summed with its K - 1 last values, weighted by [C, K]."""
    dtype = hidden_states.dtype
    rows = hidden_states.transpose(1, 2).to(weight.dtype)
    silu = activation in SILU
    fits = weight.shape[1] <= stock.MAX_TAPS
    if fits and stock.suits(rows) and stock.suits_weights(weight, bias):
        out = stock.convolve(rows, weight, bias, seq_idx, silu)
    else:
        out, silu = _convolve(rows, weight, bias, seq_idx), False
    if activation is not None and not silu:
        out = ACT2FN[activation](out)
    return out.to(dtype).transpose(1, 2)


def causal_convolution_step(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Return the same [B, C, T] for the next tokens, and change the state [B, C, K] in place."""
    length, inputs = hidden_states.shape[2], (hidden_states, conv_state)
    silu = activation in SILU
    if (
        length == 1
        and stock.suits(*inputs)
        and stock.suits_weights(weight, bias)
        and stock.keeps_no_gradient(*inputs, weight, bias)
        and conv_state.is_contiguous()
        and conv_state.shape[-1] >= weight.shape[1]
    ):
        sizes = len(hidden_states), 1, *weight.shape, silu, *hidden_states.stride()[:2]
        out = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
        places = (hidden_states, weight.contiguous(), bias, conv_state, conv_state.shape[-1], out)
        structure = native.Convolution(*sizes)
        stock.call("suffice_convolve_step", ctypes.byref(structure), *places)
    else:
        joined = torch.cat([conv_state, hidden_states], dim=-1).to(weight.dtype)
        conv_state.copy_(joined[..., -conv_state.shape[-1] :])
        out = _convolve(joined.transpose(1, 2), weight, bias)[:, -length:].transpose(1, 2)
        silu = False
    if activation is not None and not silu:
        out = ACT2FN[activation](out)
    return out.to(hidden_states.dtype)


def _convolve(
    rows: Tensor, weight: Tensor, bias: Tensor | None, documents: Tensor | None = None
) -> Tensor:
    """Return the sums [B, T, C], of values of one document each, by operations of torch."""
    last = weight.shape[1] - 1
    out = rows * weight[:, last]
    for back in range(1, min(last + 1, rows.shape[1])):
        earlier = rows[:, :-back]
        if documents is not None:
            earlier = earlier * (documents[:, back:] == documents[:, :-back])[..., None]
        out = out + F.pad(earlier, (0, 0, back, 0)) * weight[:, last - back]
    return out if bias is None else out + bias


FUNCTIONS = {
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "torch_recurrent_gated_delta_rule": gated_delta_step,
    "mamba2_chunk_scan": mamba2_scan,
    "mamba2_selective_state_update": mamba2_step,
    "causal_conv1d_fn": causal_convolution,
    "causal_conv1d_update": causal_convolution_step,
}
"""By the name that modelling files of transformers give a function: what we put in its place."""

_FEATURES = "no kernel of ours combines decays of each feature with the delta rule"
_CHANNELS = "no kernel of ours has decays of each channel and feature"
_PARTS = "transformers has it for CUDA alone, and calls the parts on a CPU"
LEFT = {
    "chunk_kimi_delta_attention": _FEATURES,
    "recurrent_kimi_delta_attention": _FEATURES,
    "mamba_selective_scan": _CHANNELS,
    "mamba_selective_state_update": _CHANNELS,
    "mamba_inner_fn": _PARTS,
    "mamba2_split_conv1d_scan_combined": _PARTS,
}
"""By the same names: why the layers keep calling transformers' function."""
