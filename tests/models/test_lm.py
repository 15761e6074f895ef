"""The language model against its formulas; models on meta are built without random numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suffice import AttentionSpec, preset
from suffice.errors import MaskError, ShapeError
from suffice.layers import MLP, RMSNorm, SwiGLU
from suffice.models import LMConfig
from suffice.models.lm import SkipInit
from suffice.patterns import Causal
from suffice.positions import Alibi, Rope
from suffice.presets import schedule, takes_length
from suffice.testing import assert_close, documents, drawn, normal, padded

from . import lm_formulas as formulas

D, HEADS, T = 8, 2, 9
GPT = LMConfig(vocabulary_size=23, length=12, d_model=D, depth=2, mlp_width=10, eps=1e-3)
LLAMA = replace(
    GPT, activation="swiglu", norm="rms", positions="none", bias=False, tied=False, eps=1e-2
)
CAUSAL = AttentionSpec(d_model=D, num_heads=HEADS, pattern=Causal())
ROPE = replace(CAUSAL, position=Rope(), bias=False)
STYLES = {
    "learned": (GPT, CAUSAL),
    "sinusoidal": (replace(GPT, positions="sinusoidal"), CAUSAL),
    "rope": (LLAMA, ROPE),
    "alibi": (LLAMA, replace(ROPE, position=Alibi())),
    "both": (replace(GPT, tied=False), ROPE),
}
MECHANISMS = ("standard", "mistral", "super_attention", "linear", "infini", "gated_deltanet")
"""One for each way to read the past; `conform` holds every layer to the same."""


def build(config=GPT, spec=CAUSAL, **changes):
    return drawn(replace(config, **changes).build(spec), seed=1).double().eval()


def model_of(mechanism, config=GPT):
    """A model of a mechanism, as large as the other ones."""
    options = {"length": config.length} if takes_length(mechanism) else {}
    return build(config, schedule(mechanism, D, HEADS, depth=2, causal=True, **options))


def rows(batch=3, length=T, seed=6):
    """Token ids, all different within a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(23, generator=generator)[:length] for _ in range(batch)])


styles = pytest.mark.parametrize("style", STYLES)
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS)


# the whole model


@pytest.mark.parametrize("length", [T, 1, 12])
def test_gpt2_is_the_formula(length):
    model, tokens = build(), rows(length=length)
    want = [formulas.gpt2(model.state_dict(), t, depth=2, heads=HEADS, eps=1e-3) for t in tokens]
    assert_close(model(tokens), torch.stack(want))


@pytest.mark.parametrize("length", [T, 1, 20])
def test_llama_is_the_formula(length):
    model, tokens = build(LLAMA, replace(ROPE, num_kv_heads=1)), rows(length=length)
    sizes = {"depth": 2, "heads": HEADS, "kv_heads": 1, "eps": 1e-2}
    want = [formulas.llama(model.state_dict(), t, **sizes) for t in tokens]
    assert_close(model(tokens), torch.stack(want))


def test_other_activations_and_positions():
    relu = build(activation="relu")
    x = normal(2, D, seed=3)
    hidden = torch.relu(x @ relu.blocks[0].mlp.up.weight.T + relu.blocks[0].mlp.up.bias)
    down = relu.blocks[0].mlp.down
    assert_close(relu.blocks[0].mlp(x), hidden @ down.weight.T + down.bias)
    model = build(positions="sinusoidal")
    assert model.embedding.positions is None
    got = model.embedding(torch.tensor([[4, 4]])) - model.embedding.tokens.weight[4]
    steps = [10_000.0 ** -(2 * (i // 2) / D) for i in range(D)]
    waves = [[(math.sin, math.cos)[i % 2](p * steps[i]) for i in range(D)] for p in range(2)]
    assert_close(got[0], torch.tensor(waves, dtype=torch.float64))
    bare = build(positions="none")
    assert_close(bare.embedding(torch.tensor([[4]]))[0, 0], bare.embedding.tokens.weight[4])


def test_each_block_may_have_its_own_attention():
    specs = [replace(CAUSAL, num_kv_heads=1), preset("toeplitz_super", D, 2, causal=True)]
    model = build(spec=specs)
    assert model.specs == [block.attention.spec for block in model.blocks] == specs
    assert model.config == GPT
    assert build().specs == [CAUSAL, CAUSAL]


def test_the_parts_are_what_the_config_says():
    assert {type(block.mlp) for block in build().blocks} == {MLP}
    llama = build(LLAMA, ROPE)
    assert {type(block.mlp) for block in llama.blocks} == {SwiGLU}
    assert not any(name.endswith("bias") for name in llama.state_dict())
    assert {m.eps for m in llama.modules() if isinstance(m, RMSNorm)} == {1e-2}
    named = [name for name in build().state_dict() if name.endswith("bias")]
    assert len(named) == 2 * (4 + 2 + 2) + 1  # of attention, MLP, norms in each block; last norm
    bare = replace(GPT, bias=False).build(replace(CAUSAL, bias=False))
    assert not any(name.endswith("bias") for name in bare.state_dict())


# no look-ahead


@mechanisms
def test_no_gradient_comes_from_the_future(mechanism):
    """Token t's logits have gradients of exactly 0 in the rows of all later tokens."""
    model, tokens = model_of(mechanism, replace(GPT, tied=False)), rows(1)
    logits = model(tokens)
    for t in range(T):
        table = model.embedding.tokens.weight
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), table, retain_graph=True)
        read = gradient[tokens[0]].abs().sum(dim=1)
        assert (read[t + 1 :] == 0).all()
        assert read[t] > 0


# padding, documents, batches


@styles
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_a_padded_row_gives_what_it_gives_alone(side, style):
    model, tokens, valid = build(*STYLES[style]), rows(), padded(3, T, side)
    got = model(tokens, valid=valid)
    for row in range(3):
        real = valid[row]
        assert_close(got[row, real], model(tokens[row, real][None])[0])


@mechanisms
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_may_hold_anything(side, mechanism):
    model, tokens, valid = model_of(mechanism), rows(), padded(3, T, side)
    want = model(tokens, valid=valid)
    assert torch.isfinite(want).all()
    for junk in (0, 5, -100, 10**6):
        filled = tokens.masked_fill(~valid, junk)
        assert_close(model(filled, valid=valid)[valid], want[valid], "exact")
    for row in range(3):
        assert_close(want[row, valid[row]], model(tokens[row, valid[row]][None])[0])


@styles
def test_a_packed_document_gives_what_it_gives_alone(style):
    model, tokens, segments = build(*STYLES[style]), rows(), documents(3, T, seed=2)
    got = model(tokens, segments=segments)
    for row in range(3):
        for number in segments[row].unique():
            document = segments[row] == number
            assert_close(got[row, document], model(tokens[row, document][None])[0])


@styles
def test_rows_do_not_meet(style):
    model, tokens = build(*STYLES[style]), rows(4)
    logits = model(tokens)
    order = torch.tensor([2, 0, 3, 1])
    assert_close(model(tokens[order]), logits[order])
    assert_close(torch.cat([model(row[None]) for row in tokens]), logits)
    valid = padded(4, T, "left")
    assert_close(model(tokens, valid=valid)[:1], logits[:1])


# how it starts and what it learns


def test_a_model_starts_as_nanogpt():
    config = replace(GPT, d_model=64, mlp_width=256, vocabulary_size=500, length=100, depth=8)
    spec = replace(CAUSAL, d_model=64)
    for activation in ("gelu", "swiglu"):
        model = replace(config, activation=activation).build(spec)
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                assert (weight == (0.0 if name.endswith("bias") else 1.0)).all(), name
                continue
            ends = name.endswith(("o_proj.weight", "mlp.down.weight"))
            deviation = 0.02 / (4.0 if ends else 1.0)
            samples = weight.detach().double().flatten()[:, None]
            assert_close(samples**2, torch.tensor([deviation**2]).double(), "statistical")
            assert_close(samples, torch.zeros(1).double(), "statistical")


@pytest.mark.parametrize("tied", [True, False])
def test_all_weights_start_from_the_scale_of_the_config(tied):
    config = replace(GPT, tied=tied)
    spec = preset("super_attention", D, HEADS, length=12, causal=True)
    torch.manual_seed(1)
    usual = config.build(spec)
    for start in (0.1, 1):
        torch.manual_seed(1)
        model = replace(config, start=start).build(spec)
        for (name, document), other in zip(
            model.named_parameters(), usual.parameters(), strict=True
        ):
            scaled = name.endswith("weight") and "norm" not in name and "mixing" not in name
            assert_close(document, other * start / 0.02 if scaled else other, "same_math")


def test_a_mixing_keeps_its_own_initialisation():
    spec = preset("super_attention", D, HEADS, length=12, causal=True, init="identity")
    for block in GPT.build(spec).blocks:
        assert torch.equal(block.attention.mixing.weight[0], torch.eye(12))


@styles
def test_everything_learns(style):
    config, spec = STYLES[style]
    model, tokens = build(config, spec).train(), rows()
    F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        needed = parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert needed or name.endswith("k_proj.bias"), name


def test_a_tied_head_is_the_tokens_table():
    tied, loose = build(), build(tied=False)
    assert tied.head is None
    assert not any(name.startswith("head") for name in tied.state_dict())
    assert loose.head.weight.shape == (23, D)
    features, table = tied.features(rows()), tied.embedding.tokens.weight
    assert_close(tied(rows()), features @ table.T)
    (gradient,) = torch.autograd.grad(tied(rows()).sum(), table)
    (of_head,) = torch.autograd.grad((features.detach() @ table.T).sum(), table)
    (of_input,) = torch.autograd.grad((features @ table.detach().T).sum(), table)
    assert_close(gradient, of_head + of_input)


def test_dropout_is_where_the_config_says():
    spec = replace(CAUSAL, dropout=0.3)
    for activation in ("gelu", "swiglu"):
        model = replace(GPT, dropout=0.1, activation=activation).build(spec)
        drops = {name: m.p for name, m in model.named_modules() if type(m).__name__ == "Dropout"}
        for n in range(2):
            assert drops.pop(f"blocks.{n}.attention.dropout") == 0.3
            assert drops.pop(f"blocks.{n}.mlp.inner_dropout", 0.0) == 0.0
            assert drops.pop(f"blocks.{n}.dropout") == drops.pop(f"blocks.{n}.mlp.dropout") == 0.1
        assert drops == {"dropout": 0.1}
        assert not torch.equal(model(rows()), model(rows()))
        assert torch.equal(model.eval()(rows()), model(rows()))


# where it lives


def test_a_model_of_another_dtype():
    model = LLAMA.build(ROPE, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    logits = model(rows())
    assert logits.dtype is torch.bfloat16
    assert torch.isfinite(logits).all()


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    ("style", "arguments"),
    [("learned", {"valid": padded(3, T, "left")}), ("rope", {"segments": documents(3, T)})],
    ids=["learned-padded", "rope-packed"],
)
def test_one_graph_equals_eager(style, arguments):
    config, spec = STYLES[style]
    model, tokens = replace(config, depth=1).build(spec), rows()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens, **arguments), model(tokens, **arguments), n=64)


# what is refused


def test_rows_that_are_too_long_are_refused():
    tokens = torch.zeros(1, 13, dtype=torch.long)
    with pytest.raises(ShapeError, match="13 tokens .* 12"):
        build()(tokens)
    bound = model_of("super_attention", replace(GPT, positions="none"))
    with pytest.raises(ShapeError, match="13 keys are more than the 12"):
        bound(tokens)


def test_other_shapes_are_refused():
    model = build()
    with pytest.raises(ShapeError, match=r"tokens has shape \[9\]"):
        model(rows()[0])
    for name in ("valid", "segments"):
        marks = torch.ones(3, 8, dtype=torch.bool)
        with pytest.raises(ShapeError, match=rf"{name} has shape \[3, 8\]"):
            model(rows(), **{name: marks})
    with pytest.raises(MaskError, match="valid has dtype torch.int64"):
        model(rows(), valid=torch.ones(3, 9, dtype=torch.long))


SIZES = {"vocabulary_size": 9, "length": 8, "d_model": 8, "depth": 1, "mlp_width": 8}


@pytest.mark.parametrize("name", ["gqa", "super_attention"])
def test_a_model_on_meta_draws_no_numbers(name):
    options = {"length": 8} if name == "super_attention" else {}
    spec = preset(name, 8, 2, causal=True, **options)
    torch.manual_seed(3)
    initialised = LMConfig(**SIZES).build(spec)
    after = torch.rand(1)
    torch.manual_seed(3)
    empty = LMConfig(**SIZES).build(spec, device="meta")
    assert {n: p.shape for n, p in empty.named_parameters()} == {
        n: p.shape for n, p in initialised.named_parameters()
    }
    assert all(p.is_meta for p in empty.parameters())
    again = LMConfig(**SIZES).build(spec)
    assert torch.equal(torch.rand(1), after)
    for one, other in zip(again.parameters(), initialised.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tensors_on_other_devices_are_initialised():
    with SkipInit():
        for fill in (nn.init.normal_, nn.init.ones_, torch.Tensor.uniform_):
            assert fill(torch.zeros(20)).abs().sum() > 0
        assert nn.init.normal_(tensor=torch.empty(3, device="meta")).is_meta
        assert torch.zeros(3, device="meta").normal_().is_meta
