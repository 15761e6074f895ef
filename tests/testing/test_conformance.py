"""conform finds a layer that breaks a promise, whichever promise it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from suffice import Attention, AttentionSpec
from suffice.combine import Differential
from suffice.encoders import Encoder, Latent, LinearEncoder
from suffice.errors import ConfigError, SufficeError
from suffice.kernels import Decayed, Softmax
from suffice.mixing import Alignment, Mixing
from suffice.ops import OPS
from suffice.ops.dispatch import forget_plans
from suffice.patterns import Causal, Full, Pattern, Window
from suffice.positions import Alibi, Position, Rope
from suffice.testing import CHECKS, Case, ConformanceError, conform, conformance, spec_around
from suffice.utils.records import Axis

SPEC = AttentionSpec(d_model=8, num_heads=2)


@pytest.fixture(autouse=True, scope="module")
def tables():
    """Take this file's values out of the library's tables again."""
    yield
    for family in (Pattern, Mixing, Position, Encoder):
        for name, value in list(family.table.items()):
            if value.__module__ == __name__:
                del family.table[name]


def broken(check: str, spec: AttentionSpec, told: str = ".") -> None:
    """The check must fail, by its own name; the message must carry the promise."""
    with pytest.raises(ConformanceError, match=rf"(?s)^{check} failed: .*Found: .*{told}"):
        conform(spec, checks=[check])
    with pytest.raises((AssertionError, RuntimeError), match=told):
        CHECKS[check](Case(spec=spec, length=5))


@dataclass(frozen=True)
class Mixed(Mixing):
    """A mixing of a test's own; subclasses say what it does to the values."""

    def parameters(self, num_kv_heads, *, causal=False):
        return 0

    def flops(self, keys, value_width, *, causal=False):
        return 0

    def build(self, *, num_kv_heads, causal, device, dtype):
        return Applied(self.apply)

    def apply(self, v, rows):
        return v


class Applied(nn.Module):
    """Changes the values [B, S, G, E] as the function says, and no key."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, k, v, rows):
        return k, self.function(v.transpose(1, 2), rows).transpose(1, 2)


def mixing(function) -> AttentionSpec:
    """A spec whose values go through this function."""

    @dataclass(frozen=True)
    class Made(Mixed):
        def apply(self, v, rows):
            return function(v, rows)

    return spec_around(Made())


@pytest.fixture
def forward(monkeypatch):
    """Change what every layer returns: function(layer, x, out, arguments) -> out."""

    def change(function):
        original = Attention.forward

        def changed(self, x, memory=None, **where):
            return function(self, x, original(self, x, memory, **where), where)

        monkeypatch.setattr(Attention, "forward", changed)

    return change


def test_good_values_of_a_users_own_pass():
    @dataclass(frozen=True)
    class Nearby(Pattern):
        causal = True

        def allowed(self, q_positions, k_positions):
            return (k_positions <= q_positions) & (q_positions - k_positions < 3)

    conform(spec_around(Nearby()))
    conform(mixing(lambda v, rows: 2 * v))


def test_json():
    @dataclass(frozen=True)
    class Named(Pattern):
        names: tuple = ((1,),)

        def allowed(self, q_positions, k_positions):
            return k_positions <= q_positions

        def to_json(self):
            return {"name": "Named", "names": [[2]]}

    broken("stored_as_plain_data", spec_around(Named()), "came back as")


@dataclass(frozen=True)
class Odd(Pattern):
    """Keys at odd distances, and the query itself."""

    spacing = 1

    def allowed(self, q_positions, k_positions):
        return ((q_positions - k_positions) % 2 == 1) | (q_positions == k_positions)


def test_masks():
    @dataclass(frozen=True)
    class TopLeft(Odd):
        def mask(self, queries, keys, *, device="cpu"):
            return super().mask(keys, keys, device=device)[:queries]

    broken("mask_is_the_predicate", spec_around(TopLeft()), "not exact")

    @dataclass(frozen=True)
    class Counting(Odd):
        def allowed(self, q_positions, k_positions):
            late = q_positions >= k_positions
            return late if q_positions.dim() == 2 else late | (k_positions == 1)

    broken("mask_is_the_predicate", spec_around(Counting()), "not exact")


def test_causal():
    @dataclass(frozen=True)
    class Claims(Odd):
        causal = True

    broken("causal_patterns_look_back", spec_around(Claims()), r"query, key \[0, 1\]")


def test_spacing():
    @dataclass(frozen=True)
    class Wide(Odd):
        spacing = 2

    broken("spacing_is_kept", spec_around(Wide()), r"spacing 2, but allows \[0, 1\]")


def test_pairs():
    @dataclass(frozen=True)
    class Miscounted(Odd):
        def pairs(self, queries, keys):
            return super().pairs(queries, keys) + (queries == 1)

    broken("pairs_are_counted", spec_around(Miscounted()), "4 pairs of 1 queries, the mask has 3")


def test_layout():
    @dataclass(frozen=True)
    class Coarse(Odd):
        def layout(self, queries, keys, block=64):
            return super().layout(queries, keys, 64)

    broken("layout_is_the_mask", spec_around(Coarse()), "asked for blocks of 1, got blocks of 64")

    @dataclass(frozen=True)
    class Sure(Odd):
        def layout(self, queries, keys, block=64):
            found = super().layout(queries, keys, block)
            return replace(found, touched=2 * found.touched.clamp(max=1))

    broken("layout_is_the_mask", spec_around(Sure()), "not exact")


def test_bounds():
    @dataclass(frozen=True)
    class Hasty(Odd):
        told: int = 0

        def bounds(self, q_first, q_last, k_first, k_last):
            corner = (q_last < 2) & (k_first > 2)
            return torch.where(corner, self.told, super().bounds(q_first, q_last, k_first, k_last))

    spans = r"queries \[0, 0\], keys \[3, 3\]: said to hold "
    broken("bounds_are_never_wrong", spec_around(Hasty(0)), f"{spans}nothing")
    spans = r"queries \[0, 0\], keys \[3, 4\]: said to hold "
    broken("bounds_are_never_wrong", spec_around(Hasty(2)), f"{spans}everything")


def test_parts():
    @dataclass(frozen=True)
    class Halves(Odd):
        def terms(self):
            return (Causal() & self,)

    broken("parts_make_the_pattern", spec_around(Halves()), "not exact")

    @dataclass(frozen=True)
    class Handed(Odd):
        def of_heads(self, num_heads):
            return (self, Full())

    broken("parts_make_the_pattern", spec_around(Handed()), "not exact")

    @dataclass(frozen=True)
    class Steady(Odd):
        def every(self, step, first):
            return self

    broken("parts_make_the_pattern", spec_around(Steady()), "not exact")


def test_parameters():
    @dataclass(frozen=True)
    class Miscounted(LinearEncoder):
        def parameters(self, spec):
            return super().parameters(spec) - 1

    spec = spec_around(Miscounted())
    broken("parameters_as_counted", spec, "288 parameters, its cost says 287")


def test_state_dict():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = float(torch.rand(()))

        def forward(self, k, v, rows):
            return k, self.factor * v

    @dataclass(frozen=True)
    class Secret(Mixed):
        def build(self, *, num_kv_heads, causal, device, dtype):
            return Hidden()

    broken("state_dict_is_complete", spec_around(Secret()), "not exact")


@pytest.fixture
def matmul(monkeypatch):
    """Replaces how the op `matmul` runs; what was planned with it is forgotten afterwards."""

    def replace_run(run):
        monkeypatch.setitem(OPS, "matmul", replace(OPS["matmul"], run=run))
        forget_plans()

    yield replace_run
    monkeypatch.undo()
    forget_plans()


def test_ops(matmul):
    good = OPS["matmul"]

    def wrong(*args):
        return good.run(*args) * 1.000001

    matmul(wrong)
    broken("ops_agree", SPEC, "not same_math")


def test_gradients(matmul):
    good = OPS["matmul"]

    def blind(q, *args):
        return good.run(q.detach(), *args)

    matmul(blind)
    broken("ops_agree", SPEC)


def test_rows():
    broken("rows_are_independent", mixing(lambda v, rows: v - v.mean(0)), "not same_math")
    broken("rows_are_independent", mixing(lambda v, rows: v + (len(v) > 1)), "not same_math")


def test_padding_content(forward):
    forward(lambda layer, x, out, where: out + x.mean(1, keepdim=True))
    broken("padding_is_not_read", SPEC, "padding gets a gradient")


def test_padding_content_without_gradient(forward):
    forward(lambda layer, x, out, where: out + x.detach().mean(1, keepdim=True))
    broken("padding_is_not_read", SPEC, "not exact")


def test_padding_position():
    spec = mixing(lambda v, rows: v + v.mean(1, keepdim=True))
    broken("padding_changes_nothing", spec, "not same_math")


def test_padded_queries(forward, monkeypatch):
    good = Attention.weights
    monkeypatch.setattr(Attention, "weights", lambda self, x, valid: good(self, x))
    broken("padding_gets_nothing", SPEC, "not exact")
    monkeypatch.setattr(Attention, "weights", good)

    def loud(layer, x, out, where):
        return out + ~where["valid"][..., None] if where else out

    forward(loud)
    broken("padding_gets_nothing", SPEC, "not exact")


def test_packed_rows_are_refused_where_documents_would_meet(monkeypatch):
    monkeypatch.setattr(Case, "takes_documents", False)
    broken("packing_changes_nothing", SPEC, "segments means nothing here, but was not refused")


def test_packing():
    def over_documents(v, rows):
        real = torch.ones(v.shape[:2]) if rows.valid is None else rows.valid
        real = real[..., None, None]
        return v + (v * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    conform(mixing(over_documents), checks=["padding_changes_nothing"])
    broken("packing_changes_nothing", mixing(over_documents), "not same_math")


def test_look_ahead():
    @dataclass(frozen=True)
    class Sneaky(Pattern):
        causal = True

        def allowed(self, q_positions, k_positions):
            return k_positions <= q_positions + 1

    broken("pattern_is_kept", spec_around(Sneaky()), "output 0 depends on position 1")


def test_look_ahead_of_a_mixing():
    spec = replace(mixing(lambda v, rows: v.flip(1)), pattern=Causal())
    broken("pattern_is_kept", spec, "depends on position")


def test_a_layer_that_sees_what_its_pattern_hides(forward):
    forward(lambda layer, x, out, where: out + x.roll(1, 1))

    @dataclass(frozen=True)
    class Own(Pattern):
        def allowed(self, q_positions, k_positions):
            return k_positions == q_positions

    broken("pattern_is_kept", spec_around(Own()), "output 0 depends on position 4")


def test_weights(monkeypatch):
    good = Attention.weights

    def told(change, spec, message):
        monkeypatch.setattr(Attention, "weights", lambda self, x: change(good(self, x)))
        broken("weights_are_correct", spec, message)

    told(lambda w: 0.5 * w, SPEC, "not same_math")
    told(lambda w: w.softmax(-1), spec_around(Causal()), "not exact")
    told(lambda w: w.flip(-1), SPEC, "not same_math")
    told(lambda w: w[..., :-1], SPEC, r"weights have shape \[3, 2, 5, 4\], want \[3, 2, 5, 5\]")
    told(lambda w: w - torch.eye(5), SPEC, "a weight is negative")


def test_shares_of_signed_kernels():
    allowed = torch.ones(1, 3).bool()

    def shares(*row):
        conformance._are_shares(torch.tensor([row]).double(), allowed, signed=True, leaks=False)

    shares(0.5, 0.25, 0.25)
    shares(0.5, -0.25, 0.25)
    for wrong in ((0.5, 0.5, 0.5), (0.5, 0.25, 0.0), (1.5, -0.25, 0.25), (0.5, -0.5, -0.25)):
        with pytest.raises(AssertionError, match="not same_math"):
            shares(*wrong)


@pytest.mark.parametrize(
    "function",
    [
        lambda layer, x, out, where: out * (1.0 if layer.training else 1.5),
        lambda layer, x, out, where: out * (1.0 if torch.is_grad_enabled() else 1.5),
        lambda layer, x, out, where: out * (1.5 if torch.is_inference_mode_enabled() else 1.0),
        lambda layer, x, out, where: out * (1.0 if x.is_contiguous() else 1.5),
    ],
    ids=["training", "grad", "inference", "strides"],
)
def test_flags(forward, function):
    forward(function)
    broken("flags_change_nothing", SPEC)


def test_dtypes(forward):
    forward(lambda layer, x, out, where: out.float() if x.dtype is torch.bfloat16 else out)
    broken("dtypes_are_kept", SPEC, "torch.bfloat16 in, torch.float32 out")


def test_precision(forward):
    single = torch.float32
    forward(lambda layer, x, out, where: out.half().float() if out.dtype is single else out)
    broken("dtypes_are_kept", SPEC, "not same_math")


def test_memory(monkeypatch):
    good = Attention.forward

    def changed(self, x, memory=None, **where):
        return good(self, x, memory, **where) + (memory is not None)

    monkeypatch.setattr(Attention, "forward", changed)
    broken("source_is_read_as_x", SPEC, "not same_math")
    conform(spec_around(Causal()), checks=["source_is_read_as_x"])
    monkeypatch.setattr("suffice.layers.inputs._check_tensors", lambda *args: None)
    broken("source_is_read_as_x", spec_around(Causal()), "cross-attention means nothing here")


def test_an_error_of_the_value_is_reported_as_its_failure():
    def fails(v, rows):
        raise RuntimeError("no such rows")

    broken("rows_are_independent", mixing(fails), "no such rows")


def test_every_check_has_a_failing_test_here():
    from pathlib import Path

    text = Path(__file__).read_text()
    assert [name for name in CHECKS if f'"{name}"' not in text] == []
    assert all(check.__doc__ for check in CHECKS.values())


def test_chunks(forward):
    forward(lambda layer, x, out, where: out + 1 if where.get("state") is not None else out)
    broken("chunks_change_nothing", spec_around(Causal()), "not same_math")


def softmax(q, k, v, allowed, scale, bias):
    scores = scale * q @ k.mT
    scores = scores if bias is None else scores + bias
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ v


@pytest.mark.parametrize(
    "spec",
    [
        spec_around(),
        spec_around(Window(2) & Causal(), Rope(), num_heads=4, num_kv_heads=2),
        spec_around(Alibi(), Latent()),
        spec_around(Alignment(5), Causal()),
        spec_around(Differential()),
    ],
    ids=["plain", "grouped", "latent", "mixed", "differential"],
)
def test_a_layer_is_compared_with_its_formula(spec):
    said = conform(spec, formula=softmax, checks=[])
    assert said.startswith("It is the formula")


def test_another_formula_is_found():
    def hardened(q, k, v, allowed, scale, bias):
        return softmax(2 * q, k, v, allowed, scale, bias)

    def of_any_key(q, k, v, scale):
        return (scale * q @ k.mT).softmax(dim=-1) @ v

    for formula in (hardened, of_any_key):
        with pytest.raises(ConformanceError, match=r"^formula failed: .*Found: not same_math"):
            conform(spec_around(Causal()), formula=formula)


def test_a_learned_tensor_that_the_formula_leaves_out_is_named():
    spec = AttentionSpec(d_model=6, num_heads=2, kernel=Softmax(sink=True))
    with pytest.raises(ConformanceError, match=r"^formula failed: .* does not use sinks\.\n"):
        conform(spec, formula=softmax, checks=[])


def test_formulas_of_something_else_are_refused():
    with pytest.raises(ConfigError, match="'bais'"):
        conform(SPEC, formula=lambda q, bais: q)
    with pytest.raises(ConfigError, match="Decayed"):
        conform(spec_around(Decayed()), formula=softmax)


def test_it_says_that_no_formula_was_tested():
    assert "give formula=" in conform(SPEC, checks=["parameters_as_counted"])


def test_length_is_cut_to_what_the_mixing_allows():
    conform(spec_around(Alignment(3)), length=9)


def test_dropout_is_left_out():
    conform(replace(SPEC, dropout=0.5), checks=["flags_change_nothing", "ops_agree"])


def test_the_error():
    assert issubclass(ConformanceError, SufficeError)
    assert issubclass(ConformanceError, AssertionError)


def test_refusals():
    with pytest.raises(ConfigError, match="'standard'"):
        conform("standard")
    with pytest.raises(ConfigError, match="checks='rows'"):
        conform(AttentionSpec(d_model=4, num_heads=2), checks="rows")
    with pytest.raises(ConfigError, match="unknown check 'rows'"):
        conform(SPEC, checks=["rows"])
    with pytest.raises(ConfigError, match="length=1"):
        conform(SPEC, length=1)
    with pytest.raises(ConfigError, match="d_source=6.*d_model=8"):
        conform(replace(SPEC, d_source=6))


def test_case_names_the_ops_that_accept():
    own, shared = SPEC, replace(SPEC, num_kv_heads=1)
    assert {"fused", "matmul", "reference"} <= set(Case(spec=own, length=5).ops(plain=True))
    assert "folded" not in Case(spec=own, length=5).ops(plain=True)
    assert "folded" in Case(spec=shared, length=5).ops(plain=False)


def test_axis_values_are_found_by_family():
    assert all(issubclass(family, Axis) for family in (Pattern, Mixing, Position, Encoder))
