"""Kernels of pairs that a user writes: every promise, the formula, and what is refused."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import suffice
from suffice import Attention, AttentionSpec
from suffice.encoders import MLA, Forgetting
from suffice.errors import ConfigError
from suffice.kernels import Kernel, Softmax
from suffice.memory import Quantised, Rolling
from suffice.ops import OPS, AttentionCall
from suffice.patterns import Causal, Window
from suffice.positions import Alibi, Rope
from suffice.testing import CHECKS, assert_close, conform, drawn, normal, spec_around
from suffice.utils.records import Axis

from .own import OWN, Cosine, Entmax15, ReluSquared, Sigmoid

PACKAGE = Path(suffice.__file__).parent
MATCHED_EXACTLY = ("ops", "spec", "layers", "models", "export", "convert", "generate")


@pytest.fixture
def kernels():
    """Take the kernels that a test defines out of the table again."""
    before = dict(Kernel.table)
    yield
    Kernel.table.clear()
    Kernel.table.update(before)


@pytest.mark.parametrize("kernel", OWN, ids=repr)
@pytest.mark.parametrize(
    ("others", "sizes"),
    [
        ((), {}),
        ((Causal(),), {"num_heads": 4, "num_kv_heads": 2}),
        ((Window(2) & Causal(), Rope()), {}),
        ((Alibi(),), {}),
    ],
    ids=["full", "grouped", "rotated window", "biased"],
)
def test_it_keeps_every_promise(kernel, others, sizes):
    conform(spec_around(kernel, *others, **sizes), length=6)


@pytest.mark.parametrize("kernel", OWN, ids=repr)
def test_queries_without_keys_give_nothing_and_finite_gradients(kernel):
    layer = drawn(Attention(spec_around(kernel), dtype=torch.float64), seed=1)
    x = normal(2, 7, 8, seed=0).requires_grad_()
    valid = torch.tensor([[True] * 5 + [False] * 2, [False] * 7])
    layer(x, valid=valid).square().sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kernel", OWN, ids=repr)
def test_weights_are_dropped_as_those_of_the_reference(kernel):
    spec = spec_around(kernel, Causal(), num_heads=4, num_kv_heads=2, dropout=0.4)
    x, outputs = normal(2, 7, 8, seed=0), []
    for impl in ("auto", "reference"):
        layer = drawn(Attention(spec, impl=impl, dtype=torch.float64), seed=1).train()
        torch.manual_seed(3)
        outputs.append(layer(x))
    assert_close(*outputs)
    assert not torch.allclose(outputs[0], layer.eval()(x))


@pytest.mark.parametrize("kernel", OWN, ids=repr)
@pytest.mark.parametrize("memory", [Rolling(4), Quantised(Rolling(4))], ids=repr)
def test_a_bounded_cache_is_read_by_the_same_formula(kernel, memory):
    spec = spec_around(kernel, Window(4) & Causal(), d_model=32, num_heads=2)
    layer, x = drawn(Attention(spec), seed=1).eval(), torch.randn(1, 9, 32)
    state = layer.state(memory)
    with torch.no_grad():
        parts = [layer(x[:, t : t + 1], state=state) for t in range(9)]
        difference = (torch.cat(parts, dim=1) - layer(x)).abs().max()
    assert difference < (1e-5 if state.exact else 0.1)


def test_learned_numbers_are_parameters_of_the_layer_and_are_counted():
    layer = Attention(spec_around(Sigmoid(length=10)))
    assert_close(layer.bias, torch.full((2,), -math.log(10)))
    assert isinstance(layer.bias, torch.nn.Parameter)
    plain = spec_around().cost(4).parameters
    assert layer.spec.cost(4).parameters == plain + 2
    assert Attention(layer.spec, device="meta").bias.is_meta


def test_asking_for_a_cost_draws_no_random_numbers(kernels):
    @dataclass(frozen=True)
    class Noisy(Kernel):
        def learned(self, heads, head_dim):
            return {"gain": torch.randn(heads, head_dim)}

        def scores(self, q, k, scale, gain):
            return (q * gain[:, None]) @ k.mT

        def weights(self, scores, allowed):
            return scores.relu()

    torch.manual_seed(0)
    before = torch.get_rng_state()
    spec = spec_around(Noisy())
    assert spec.cost(3).parameters - spec_around().cost(3).parameters == 8
    assert torch.equal(torch.get_rng_state(), before)


def test_all_pairs_of_a_kernel_without_an_op_count():
    window = Window(4) & Causal()
    own, softmax = (spec_around(k, window).cost(512) for k in (ReluSquared(), Softmax()))
    assert own.flops > softmax.flops
    assert own.visible_flops == softmax.visible_flops


def test_no_other_op_and_no_other_program_computes_it():
    spec = spec_around(Cosine(), Causal())
    call = AttentionCall.of(spec, 5, 5)
    assert {name for name, op in OPS.items() if not op.refuses(call)} == {"matmul", "reference"}
    assert spec.lower() is None


def test_a_subclass_of_softmax_is_computed_by_its_own_formula():
    """Others cannot define one; one of the package must not be taken for a softmax either."""

    @dataclass(frozen=True)
    class _Halved(Softmax):
        __module__ = "suffice.kernels.halved"

        def weights(self, scores, allowed, sinks=None):
            return super().weights(scores, allowed) / 2

    own, x = Attention(spec_around(_Halved(), bias=False)), torch.randn(2, 20, 8)
    softmax = Attention(spec_around(Softmax(), bias=False))
    softmax.load_state_dict(own.state_dict())
    for layers in ((own, softmax), (own.eval(), softmax.eval())):
        with torch.no_grad():
            half, whole = (layer(x) for layer in layers)
        assert_close(2 * half, whole, n=20)
    assert own.spec.lower() is None
    conform(own.spec, checks=[name for name in CHECKS if name != "stored_as_plain_data"])


def test_consumers_match_the_exact_class_of_an_axis_value():
    values = {name for family in Axis.__subclasses__() for name in family.table}
    values -= {"Concat", "HeadRMS"}  # each has a subclass that is computed as it is
    for folder in MATCHED_EXACTLY:
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                    names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                    assert not names & values, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_what_a_class_lacks_is_said_when_it_is_defined(kernels):
    with pytest.raises(ConfigError, match="lacks weights"):
        type("Nothing", (Kernel,), {})
    with pytest.raises(ConfigError, match="lacks num_features, build"):
        type("Sums", (Kernel,), {"lane": "sums"})
    with pytest.raises(ConfigError, match="lane='pair'"):
        type("Misspelt", (Kernel,), {"lane": "pair"})
    with pytest.raises(ConfigError, match=r"Swapped.weights takes \(self, allowed, scores\)"):
        type("Swapped", (Kernel,), {"weights": lambda self, allowed, scores: scores})
    assert not Kernel.table.keys() & {"Nothing", "Sums", "Misspelt", "Swapped"}


@pytest.mark.parametrize(
    ("methods", "match"),
    [
        ({"weights": lambda self, scores, allowed, bias: scores}, "'bias'"),
        ({"weights": lambda self, scores, allowed: scores.sum(-1)}, "cannot be computed"),
        ({"weights": lambda self, scores, allowed: scores[:1]}, r"\[1, 2, 2, 3\]"),
        ({"weights": lambda self, scores, allowed: scores.shape}, "cannot be computed"),
        ({"learned": lambda self, heads, head_dim: {"gain": torch.ones(heads)}}, "gain"),
        ({"learned": lambda self, heads, head_dim: {"gain": 1.0}}, "gain=1.0"),
        ({"learned": lambda self, heads, head_dim: {"gain": torch.ones(2).long()}}, "gain="),
        ({"scores": lambda self, q, k, scale: q}, "cannot be computed"),
    ],
)
def test_what_cannot_be_computed_is_said_when_the_spec_is_built(kernels, methods, match):
    defaults = {"weights": lambda self, scores, allowed: scores.relu(), "__module__": __name__}
    kernel = dataclass(frozen=True)(type("Broken", (Kernel,), {**defaults, **methods}))
    with pytest.raises(ConfigError, match=match):
        spec_around(kernel())


def test_a_class_without_fields_of_its_own_is_refused(kernels):
    class Bare(Kernel):
        power: float = 2.0

        def weights(self, scores, allowed):
            return scores.relu() ** self.power

    with pytest.raises(ConfigError, match="@dataclass"):
        spec_around(Bare())


def test_a_parameter_needs_a_name_that_the_layer_does_not_have(kernels):
    @dataclass(frozen=True)
    class Clash(Kernel):
        def learned(self, heads, head_dim):
            return {"dropout": torch.ones(heads)}

        def weights(self, scores, allowed, dropout):
            return scores * dropout[:, None, None]

    with pytest.raises(ConfigError, match="'dropout'"):
        Attention(spec_around(Clash()))


@pytest.mark.parametrize("encoder", [MLA(4, 2), Forgetting()], ids=repr)
def test_scores_of_more_than_products_are_refused_where_keys_are_others(encoder):
    with pytest.raises(ConfigError, match="Cosine"):
        spec_around(Cosine(), encoder, Causal())
    spec_around(Entmax15(), encoder, Causal())


def test_a_compiled_graph_gives_the_same():
    layer, x = drawn(Attention(spec_around(Cosine(), Causal())), seed=1), torch.randn(2, 6, 8)
    graph = torch.export.export(layer, (x,)).module()
    assert_close(graph(x), layer(x), n=8)


def test_specs_with_it_are_stored_and_replaced():
    spec = AttentionSpec(d_model=8, num_heads=2, kernel=Sigmoid(length=32))
    assert AttentionSpec.from_json(spec.to_json()) == spec
    assert replace(spec, kernel=Sigmoid(length=8)).kernel.length == 8
