"""Which op is chosen, what each refuses, and that no explicit choice is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, attend, preset
from suffice.errors import ConfigError, UnsupportedError
from suffice.kernels import Favor, Kernel, Softmax
from suffice.ops import OPS, AttentionCall, choose, explain
from suffice.ops.dispatch import FEW_QUERIES, SPARSE_KEYS, WIDE_HEAD, WIDE_KEYS, ranking
from suffice.ops.matmul import MATMUL
from suffice.patterns import Causal, Full, Global, Strided, Window

pytestmark = pytest.mark.usefixtures("no_kernels")

PLAIN = AttentionCall(
    queries=64, keys=64, num_heads=4, num_kv_heads=4, head_dim=8, value_dim=8, scale=1.0
)
SHARED = replace(PLAIN, num_kv_heads=2)
SPACED = replace(PLAIN, pattern=Strided(8) & Causal())


class Recurrent(Kernel, base=True):
    """A kernel of a test's own that gives pairs no weights."""

    lane = "sums"


@pytest.fixture(autouse=True, scope="module")
def tables():
    """Leave the library's table as it was."""
    yield
    Kernel.table.pop("Recurrent", None)


CHOICES = [
    (PLAIN, "fused"),
    (SHARED, "fused"),
    (replace(SHARED, queries=FEW_QUERIES), "folded"),
    (replace(SHARED, queries=1, device="cuda"), "fused"),
    (replace(SHARED, queries=1, device="cuda", plain=False), "folded"),
    (replace(SHARED, queries=FEW_QUERIES + 1), "fused"),
    (replace(PLAIN, queries=1), "fused"),
    (replace(PLAIN, dropping=True), "matmul"),
    (replace(SHARED, dropping=True, queries=1), "matmul"),
    (replace(PLAIN, value_dim=5), "fused"),
    (replace(PLAIN, keys=0), "matmul"),
    (replace(PLAIN, queries=0), "matmul"),
    (SPACED, "fused"),
    (replace(SPACED, dtype=torch.float16, grad=True), "matmul"),
    (replace(SPACED, dtype=torch.float16, grad=False), "fused"),
]


@pytest.mark.parametrize(("problem", "name"), CHOICES)
def test_automatic_choice(problem, name):
    assert choose(problem).name == name
    assert explain(problem).startswith(f"{name}: ")
    assert all(op.refuses(problem) == [] for op in (choose(problem), OPS["reference"]))


def test_wide_heads_at_moderate_lengths_go_through_products():
    wide = replace(PLAIN, head_dim=WIDE_HEAD, value_dim=WIDE_HEAD, grad=False)
    for keys in (WIDE_KEYS.start, WIDE_KEYS.stop - 1):
        assert choose(replace(wide, keys=keys)).name == "matmul"
    for changes in (
        {"keys": WIDE_KEYS.start - 1},
        {"keys": WIDE_KEYS.stop},
        {"queries": FEW_QUERIES},
        {"device": "cuda"},
        {"head_dim": WIDE_HEAD - 1, "value_dim": WIDE_HEAD - 1},
        {"grad": True},  # below 128 x 128 pairs
    ):
        assert choose(replace(wide, **changes)).name == "fused"


def test_sparse_patterns_of_long_sequences_skip_blocks():
    window = replace(PLAIN, queries=4096, keys=4096, pattern=Window(256) & Causal())
    assert choose(window).name == "blocked"
    assert choose(replace(window, plain=False)).name == "blocked"
    for changes in (
        {"pairwise": True, "plain": False},
        {"keys": SPARSE_KEYS - 1, "queries": SPARSE_KEYS - 1, "pattern": Window(8)},
        {"pattern": Window(3000)},
        {"pattern": Causal()},
    ):
        assert choose(replace(window, **changes)).name == "fused"
    half = Window(700) & Causal()  # too dense to pay, but for the mask of a long sequence
    assert choose(replace(window, queries=1024, keys=1024, pattern=half)).name == "fused"
    assert choose(replace(window, pattern=Window(900) | Global(4))).name == "blocked"
    explanation = explain(replace(PLAIN, pattern=Window(8)))
    assert "not blocked: pays from 512 keys on where at most 35% of the pairs" in explanation
    assert "not blocked: the pattern leaves no region out" in explain(PLAIN)


def test_the_reference_is_never_chosen_by_itself():
    for problem, _ in CHOICES:
        assert "reference" not in [op.name for op in ranking(problem)]


@pytest.mark.parametrize("name", ["fused", "folded", "blocked", "matmul", "reference"])
def test_an_explicit_choice_is_used(name):
    assert choose(SHARED, name) is OPS[name]
    assert explain(SHARED, name).startswith(f"{name}: {OPS[name].about}")


@pytest.mark.parametrize(
    ("name", "problem", "explanation"),
    [
        ("fused", replace(PLAIN, dropping=True), "dropping weights makes torch leave"),
        ("fused", replace(PLAIN, tangents=True), "no forward-mode derivative"),
        ("fused", replace(PLAIN, keys=0), "there is no query or no key"),
        ("fused", replace(PLAIN, queries=0), "there is no query or no key"),
        ("folded", PLAIN, "every query head has its own keys: nothing to fold"),
        ("folded", replace(SHARED, dropping=True), "dropping weights"),
        ("fused", replace(PLAIN, kernel=Recurrent()), "Recurrent gives pairs no weights"),
        ("folded", replace(SHARED, kernel=Recurrent()), "Recurrent gives pairs no weights"),
        ("blocked", replace(PLAIN, kernel=Recurrent()), "Recurrent gives pairs no weights"),
    ],
)
def test_an_explicit_choice_is_refused_with_the_reason(name, problem, explanation):
    message = f"impl='{name}' cannot compute this: .*{explanation}.*Use impl='auto'"
    with pytest.raises(UnsupportedError, match=message):
        choose(problem, name)


def test_all_reasons_at_once():
    with pytest.raises(UnsupportedError, match="dropping.*no query or no key.*nothing to fold"):
        choose(replace(PLAIN, dropping=True, keys=0), "folded")


def test_products_compute_whatever_it_is():
    """So that some op always can."""
    for problem, _ in CHOICES:
        assert MATMUL in ranking(problem)
        assert MATMUL.refuses(replace(problem, kernel=Recurrent())) == []


@pytest.mark.parametrize("impl", ["flash", "", "Fused", "auto "])
def test_an_unknown_name(impl):
    with pytest.raises(
        ConfigError, match="unknown impl .* Legal: auto, blocked, flex, folded, fused, matmul"
    ):
        choose(PLAIN, impl)
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ConfigError, match="unknown impl"):
        attend(q, q, q, impl=impl)
    with pytest.raises(ConfigError, match="unknown impl"):
        Attention(preset("standard", 8, 2), impl=impl)


def test_a_layer_refuses_its_op_when_built():
    with pytest.raises(UnsupportedError, match="nothing to fold"):
        Attention(preset("standard", 8, 2), impl="folded")


@pytest.mark.parametrize("impl", ["fused", "folded"])
def test_a_layer_with_dropout_refuses_in_training_only(impl):
    layer = Attention(preset("mqa", 8, 2, dropout=0.1), impl=impl)
    x = torch.randn(2, 5, 8)
    with pytest.raises(UnsupportedError, match="dropping weights makes torch leave"):
        layer(x)
    assert layer.eval()(x).shape == x.shape


def test_refusals_through_attend():
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(UnsupportedError, match="there is no query or no key"):
        attend(q, k[:, :, :0], k[:, :, :0], impl="fused")


def test_explain_names_every_other_op():
    lines = explain(SHARED).splitlines()
    assert lines[0] == "fused: torch's fused scaled-dot-product attention"
    assert {line.split(":")[0] for line in lines[1:]} == {
        f"not {name}" for name in OPS if name != "fused"
    }
    explanation = "\n".join(lines)
    assert f"pays for at most {FEW_QUERIES} queries; here 64" in explanation
    assert "pays on a CPU for heads of 256 features or more and 64 to 512 keys" in explanation
    assert "it is the float64 specification, for tests" in explanation


def test_explain_of_what_is_only_slower():
    explanation = explain(replace(SHARED, queries=1))
    assert "not fused: slower for these sizes, as measured" in explanation


def test_explain_of_a_layer():
    layer = Attention(preset("standard", 8, 2, dropout=0.1))
    assert layer.explain(5).startswith("matmul: ")
    assert "not fused: dropping weights" in layer.explain(5)
    assert layer.eval().explain(5).startswith("fused: ")
    assert layer.explain(5).splitlines()[-1] == "linear maps: F.linear"
    assert layer.explain(5, source_length=9, batch=2, plain=False).startswith("fused: ")
    wide = Attention(preset("mqa", 512, 2))
    assert wide.eval().explain(1).startswith("folded: ")
    assert wide.explain(128).startswith("matmul: ")
    assert wide.explain(128, device="cuda").startswith("fused: ")


def test_problem_facts():
    assert SHARED.group == 2
    assert PLAIN.unrestricted
    assert not replace(PLAIN, plain=False).unrestricted
    assert not replace(PLAIN, pattern=Causal()).unrestricted
    assert replace(PLAIN, pattern=Causal(), queries=1).unrestricted
    assert not replace(PLAIN, pattern=Full() & Causal(), queries=1).unrestricted
    assert replace(PLAIN, pattern=Causal()).triangular
    assert not replace(PLAIN, pattern=Causal(), keys=65).triangular
    assert not replace(PLAIN, pattern=Causal(), plain=False).triangular
    assert PLAIN.kernel == Softmax()


def test_ops_by_name():
    assert all(op.name == name and op.about for name, op in OPS.items())


def test_a_favor_kernel_has_256_features():
    assert Favor().features == 256
