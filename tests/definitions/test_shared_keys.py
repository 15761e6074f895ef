"""Cross-layer attention: queries of one layer's input, keys and values of another one's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.combine import Differential
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised
from suffice.layers.inputs import SharedKV
from suffice.mixing import Alignment
from suffice.patterns import Causal, Window
from suffice.positions import Alibi, Rope
from suffice.spec.lowering import DenseSoftmax, SharedSoftmax
from suffice.testing import assert_close, documents, drawn, normal, padded

from .loops import attention, built, everything, linear, tensor, up_to_self

D_MODEL, HEADS, LENGTH = 12, 4, 7
MAKER = AttentionSpec(d_model=D_MODEL, num_heads=HEADS)
CAUSAL = replace(MAKER, pattern=Causal())


def reader_of(spec, **changes):
    return replace(spec, shares=0, mixing=AttentionSpec(d_model=1, num_heads=1).mixing, **changes)


def pair(spec, **changes):
    """A layer, one that reads its keys and values, and an input of each."""
    layers = built(spec, seed=1), built(reader_of(spec, **changes), seed=2)
    return *layers, normal(3, LENGTH, D_MODEL, seed=3), normal(3, LENGTH, D_MODEL, seed=4)


def read(maker, reader, x, z, **where):
    """The output of the reader for z, after the maker was called on x."""
    shared = SharedKV()
    maker(x, shared=shared, **where)
    return reader(z, shared=shared, **where)


def wanted(maker, reader, x, z, see):
    """`definition` of each row of a batch."""
    rows = zip(x.tolist(), z.tolist(), strict=True)
    return tensor([definition(maker, reader, *row, see) for row in rows])


def definition(maker, reader, x, z, see):
    """softmax(z W_Q (x W_K)^T / sqrt(D)) x W_V, then the reader's W_O, for one row."""
    spec = reader.spec
    return attention(
        reader,
        linear(z, reader.q_proj),
        linear(x, maker.k_proj),
        linear(x, maker.v_proj),
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=D_MODEL // HEADS,
        see=see,
    )


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize(
    ("pattern", "see"),
    [
        (MAKER.pattern, everything),
        (Causal(), up_to_self),
        (Window(3) & Causal(), lambda t, s: 0 <= t - s < 3),
    ],
    ids=["full", "causal", "window"],
)
def test_formula(pattern, see, kv_heads):
    maker, reader, x, z = pair(replace(MAKER, pattern=pattern, num_kv_heads=kv_heads))
    assert_close(read(maker, reader, x, z), wanted(maker, reader, x, z, see))


def test_patterns_may_differ():
    maker, reader, x, z = pair(CAUSAL, pattern=Window(2) & Causal())
    want = wanted(maker, reader, x, z, lambda t, s: 0 <= t - s < 2)
    assert_close(read(maker, reader, x, z), want)


FORMS = {
    "standard": CAUSAL,
    "grouped": replace(CAUSAL, num_kv_heads=2),
    "rotary": replace(CAUSAL, head_dim=4, position=Rope(50.0)),
    "alibi": replace(CAUSAL, position=Alibi()),
    "normed": replace(CAUSAL, norm=HeadRMS(1e-3)),
    "columns": replace(CAUSAL, encoder=Efficient()),
    "values are columns": replace(CAUSAL, encoder=Optimised()),
    "latent": replace(CAUSAL, encoder=Latent(), num_kv_heads=1, head_dim=5),
    "differential": replace(CAUSAL, num_heads=2, combine=Differential()),
    "mixed": replace(CAUSAL, mixing=Alignment(LENGTH)),
}
forms = pytest.mark.parametrize("form", FORMS)


@forms
@pytest.mark.parametrize("where", ["nothing", "padding", "documents"])
def test_a_reader_with_the_makers_maps_gives_the_makers_output(form, where):
    """On the same input: sharing changes where keys and values come from, and nothing else."""
    maker = built(FORMS[form], seed=1)
    reader = Attention(reader_of(FORMS[form]), dtype=torch.float64)
    weights = maker.state_dict()
    reader.load_state_dict({name: weights[name] for name in reader.state_dict()})
    x = normal(3, LENGTH, D_MODEL, seed=3)
    restrictions = {
        "nothing": {},
        "padding": {"valid": padded(3, LENGTH, "left", seed=5)},
        "documents": {"segments": documents(3, LENGTH, seed=6)},
    }[where]
    assert_close(read(maker, reader, x, x, **restrictions), maker(x, **restrictions))


@forms
def test_gradients_reach_both_layers(form):
    maker, reader, x, z = pair(FORMS[form])
    inputs = [t.requires_grad_() for t in (x, z)]
    names = [name for name, _ in maker.named_parameters(prefix="maker")]
    names += [name for name, _ in reader.named_parameters()]
    values = [*maker.parameters(), *reader.parameters()]
    out = read(maker, reader, *inputs)
    slope = normal(*out.shape, seed=7)
    grads = torch.autograd.grad(out, [*inputs, *values], slope, allow_unused=True)
    named = dict(zip(["x", "z", *names], grads, strict=True))
    unread = {"maker.q_proj", "maker.o_proj", "maker.q_norm", "maker.difference"}
    assert {n for n, g in named.items() if g is None} == {
        n for n in named if n.rpartition(".")[0].removesuffix(".norm") in unread
    }
    step = 1e-6
    for tensor_, grad in zip([*inputs, *values], grads, strict=True):
        if grad is None:
            continue
        direction = normal(*tensor_.shape, seed=8)
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                tensor_ += sign * step * direction
                ends.append((read(maker, reader, *inputs) * slope).sum())
                tensor_ -= sign * step * direction
        got = (grad * direction).sum()
        assert abs(got - (ends[0] - ends[1]) / (2 * step)) <= 1e-6 * (1 + abs(got))


@forms
def test_weights_are_of_the_shared_keys(form):
    """Rows sum to 1, and times the shared values they are what the reader's output map reads."""
    maker, reader, x, z = pair(FORMS[form])
    shared = SharedKV()
    maker(x, shared=shared)
    weights = reader.weights(z, shared=shared)
    assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    if form != "differential":
        v = shared.cached.tensors[-1]
        per_head = v.repeat_interleave(HEADS // v.shape[1], dim=1)
        heads = (weights @ per_head).transpose(1, 2).flatten(2)
        assert_close(reader.o_proj(heads), reader(z, shared=shared))


def test_costs():
    maker, reader = CAUSAL.cost(LENGTH), reader_of(CAUSAL).cost(LENGTH)
    maps = D_MODEL**2 + D_MODEL
    assert (maker.parameters, reader.parameters) == (4 * maps, 2 * maps)
    assert maker.flops - reader.flops == 2 * 2 * LENGTH * D_MODEL**2
    assert (maker.state_numbers, reader.state_numbers) == (2 * D_MODEL, 0)
    normed = reader_of(FORMS["normed"])
    built_parameters = sum(p.numel() for p in Attention(normed).parameters())
    assert built_parameters == normed.cost(1).parameters == 2 * maps + D_MODEL // HEADS


def test_json_names_it_only_where_it_is():
    assert "shares" not in CAUSAL.to_json()
    data = reader_of(CAUSAL).to_json()
    assert data["shares"] == 0
    assert AttentionSpec.from_json(data) == reader_of(CAUSAL)


def test_records():
    """A consumer that knows no shared keys sees a record that it does not know."""
    assert type(CAUSAL.lower()) is DenseSoftmax
    lowered = reader_of(CAUSAL).lower()
    assert type(lowered) is SharedSoftmax
    assert lowered.shares == 0
    assert reader_of(FORMS["differential"]).lower() is None


def test_every_op_reads_shared_keys():
    maker, reader, x, z = pair(CAUSAL)
    want = read(maker, reader, x, z)
    for impl in ("reference", "matmul", "fused"):
        reader.impl = impl
        assert_close(read(maker, reader, x, z), want)


def test_a_half_precision_reader():
    spec = replace(CAUSAL, num_kv_heads=2)
    layers = [drawn(Attention(s), seed=n) for n, s in enumerate((spec, reader_of(spec)))]
    x, z = (normal(3, LENGTH, D_MODEL, seed=n, dtype=torch.float32) for n in (3, 4))
    want = read(*layers, x, z)
    low = read(*(layer.bfloat16() for layer in layers), x.bfloat16(), z.bfloat16())
    assert (low.float() - want).abs().max() <= 0.05 * want.abs().max()
