"""The functions that take the place of transformers', with every argument, against loops."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from suffice.hf.acceleration.attention import attention
from suffice.hf.acceleration.layers import rotary
from suffice.hf.acceleration.sequences import (
    gated_delta_rule,
    gated_delta_step,
    mamba2_scan,
    mamba2_step,
)
from suffice.testing import assert_close, normal

HEADS, GROUPS, WIDTH = 6, 2, 7
DTYPES = [torch.float32, torch.float64]


def of_mamba(batch, length, wide, dtype):
    """Inputs of Mamba-2: x, dt, A, B, C, D and the bias of dt, all but A of both signs."""
    shapes = ((batch, length, HEADS, wide), (batch, length, HEADS), (HEADS,))
    shapes += ((batch, length, GROUPS, WIDTH),) * 2 + ((HEADS,),) * 2
    made = [normal(*shape, seed=n).to(dtype) for n, shape in enumerate(shapes)]
    made[2] = -made[2].exp()
    return made


def mamba2(x, dt, a, b, c, d, bias, state, limit=(0.0, torch.inf), documents=None):
    """The recurrence token by token in float64: outputs [B, T, H, E] and the state [B, H, E, D]."""
    x, dt, a, b, c, d, bias, state = (y.double() for y in (x, dt, a, b, c, d, bias, state))
    outs = []
    for t in range(x.shape[1]):
        if documents is not None and t and documents[t] != documents[t - 1]:
            state = torch.zeros_like(state)
        step = F.softplus(dt[:, t] + bias).clamp(*limit)
        keys, queries = (y[:, t].repeat_interleave(HEADS // GROUPS, 1) for y in (b, c))
        added = (step[..., None] * x[:, t])[..., None] * keys[:, :, None]
        state = state * (step * a).exp()[..., None, None] + added
        outs.append((state @ queries[..., None])[..., 0] + d[:, None] * x[:, t])
    return torch.stack(outs, 1), state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [5, 32])
def test_mamba2_with_states_limits_and_gates(wide, dtype):
    x, dt, a, b, c, d, bias = of_mamba(3, 9, wide, dtype)
    state, limit = normal(3, HEADS, wide, WIDTH, seed=9).to(dtype), (0.3, 0.9)
    more = {"D": d, "dt_bias": bias, "dt_softplus": True}
    got = mamba2_scan(
        x, dt, a, b, c, 4, initial_states=state, dt_limit=limit, return_final_states=True, **more
    )
    for one, want in zip(got, mamba2(x, dt, a, b, c, d, bias, state, limit), strict=True):
        assert_close(one.float(), want.float(), n=100)  # sums are of float32, as theirs
    z, each = normal(3, HEADS, wide, seed=8).to(dtype), (HEADS, wide)
    want, end = mamba2(x[:, :1], dt[:, :1], a, b[:, :1], c[:, :1], d, bias, state)
    out = mamba2_step(
        *(
            state,
            x[:, 0],
            dt[:, 0, :, None].expand(3, *each),
            a[:, None, None].expand(*each, WIDTH),
        ),
        *(b[:, 0], c[:, 0]),
        D=d[:, None].expand(each),
        dt_bias=bias[:, None].expand(each),
        dt_softplus=True,
        z=z,
    )
    assert_close(out.float(), (want[:, 0] * F.silu(z.double())).float(), n=100)
    assert_close(state.float(), end.float(), n=100)


@pytest.mark.parametrize("named", ["cu_seqlens", "seq_idx"])
def test_documents_of_mamba2_start_anew(named):
    inputs = of_mamba(1, 11, 5, torch.float32)
    documents = torch.tensor([0] * 4 + [1] + [2] * 6)
    where = {"cu_seqlens": torch.tensor([0, 4, 5, 11]), "seq_idx": documents[None]}[named]
    x, dt, a, b, c, d, bias = inputs
    out = mamba2_scan(x, dt, a, b, c, D=d, dt_bias=bias, dt_softplus=True, **{named: where})
    want, _ = mamba2(*inputs, torch.zeros(1, HEADS, 5, WIDTH), documents=documents)
    assert_close(out, want.float(), n=100)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("wide", [5, 32])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_gated_delta_rule_in_rows_and_in_steps(unit, wide, keeps):
    """S <- e^g S + beta k (v - k^T e^g S), read by q / sqrt(D); steps change the state in place."""
    batch, length, keys = 2, 6, 2
    q, k = (normal(batch, length, keys, WIDTH, seed=n).float() for n in (1, 2))
    v = normal(batch, length, HEADS, wide, seed=3).float()
    g, beta = (
        -normal(batch, length, HEADS, seed=4).float().exp(),
        normal(batch, length, HEADS, seed=5).sigmoid(),
    )
    start = normal(batch, HEADS, WIDTH, wide, seed=6).float()
    state, wants = start.double(), []
    for t in range(length):
        one, other = (x[:, t].double().repeat_interleave(HEADS // keys, 1) for x in (q, k))
        if unit:
            one, other = (
                x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (one, other)
            )
        state = state * g[:, t].double().exp()[..., None, None]
        left = v[:, t].double() - (other[:, :, None] @ state)[:, :, 0]
        state = state + other[..., None] * (beta[:, t].double()[..., None] * left)[:, :, None]
        wants.append((one[:, :, None] @ state)[:, :, 0] * WIDTH**-0.5)
    options = {"output_final_state": keeps, "use_qk_l2norm_in_kernel": unit}
    beta = beta.float()
    got, end = gated_delta_rule(q, k, v, g, beta, initial_state=start.clone(), **options)
    assert_close(got, torch.stack(wants, 1).float(), n=100)
    assert (end is not None) is keeps
    if keeps:
        assert_close(end, state.float(), n=100)
    held = start.clone()
    for t in range(length if keeps else 1):
        parts = (x[:, t : t + 1] for x in (q, k, v, g, beta))
        out, end = gated_delta_step(*parts, held, **options)
        assert_close(out[:, 0], wants[t].float(), n=100)
        held = end if keeps else held
    assert_close(held, state.float() if keeps else start, n=100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2])
def test_rotary_embeddings_of_heads_first_or_last(dim, dtype):
    tables = [normal(2, 5, 6, seed=n).to(dtype) for n in (1, 2)]
    for heads in (4, 2):
        x = normal(2, 5, heads, 10, seed=heads).to(dtype)
        cos, sin = (table[:, :, None] for table in tables)
        want = torch.cat(
            [x[..., :3] * cos[..., :3] - x[..., 3:6] * sin[..., :3]]
            + [x[..., 3:6] * cos[..., 3:] + x[..., :3] * sin[..., 3:], x[..., 6:]],
            dim=-1,
        )
        given = x if dim == 2 else x.transpose(1, 2)
        for got in rotary(given, given, *tables, unsqueeze_dim=dim):
            assert_close(got if dim == 2 else got.transpose(1, 2), want)


@pytest.mark.parametrize("of_module", [False, True])
@pytest.mark.parametrize("given", [None, False, True])
def test_attention_is_causal_as_it_is_told_or_as_its_layer_is(given, of_module):
    q, k, v = (normal(2, n, 5, 8, seed=s).float() for s, n in enumerate((6, 2, 2)))
    module = SimpleNamespace(is_causal=of_module)
    out, _ = attention(module, q, k, v, None, scaling=0.2, is_causal=given)
    causal = of_module if given is None else given
    scores = (0.2 * q.double() @ k.repeat_interleave(3, 1).double().mT).masked_fill(
        torch.ones(5, 5).triu(1).bool() & torch.tensor(causal), -torch.inf
    )
    want = scores.softmax(-1) @ v.repeat_interleave(3, 1).double()
    assert_close(out, want.transpose(1, 2).float())
