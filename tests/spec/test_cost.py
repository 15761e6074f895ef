"""Costs in closed form, held against executions that count themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, AttentionSpec, preset
from suffice.encoders import Efficient, Latent, Optimised, Standard
from suffice.kernels import Elu, Favor, Rfa
from suffice.memory.past import Infini
from suffice.mixing import Alignment, LowRank
from suffice.ops import register_flops
from suffice.patterns import (
    Causal,
    Dilated,
    Full,
    Global,
    Pattern,
    PerHead,
    Strided,
    Window,
)
from suffice.positions import Rope
from suffice.presets import PRESETS, is_always_causal, needs_length
from suffice.spec.cost import BLOCK, Cost, computed_pairs
from tests.acceptance.mechanisms import PRESET_KINDS, ops_of

D_MODEL, NUM_HEADS = 32, 4
LENGTHS = (1, 33)
WIDE = 256  # features: with 64 positions the maps of a layer are above oneDNN's threshold


def spec_of(name, *, causal=False, d_model=D_MODEL, length=64) -> AttentionSpec:
    options = {"length": length} if needs_length(name) else {}
    causal = causal or is_always_causal(name)
    return preset(name, d_model, NUM_HEADS, causal=causal, **options)


KINDS = [
    (name, causal)
    for name, causal in PRESET_KINDS.values()
    if spec_of(name, causal=causal).lane == "pairs"
]
SUMS = {  # kernels of features; the heads of "-gqa" share keys
    f"{name}{'' if kv_heads == NUM_HEADS else '-gqa'}": (name, kv_heads)
    for name in PRESETS
    if spec_of(name).lane == "sums"
    for kv_heads in (NUM_HEADS, 2)
}
CROSSING = [name for name in PRESETS if not spec_of(name).refuses_source()]
CHUNKED = (1, 64, 65, 200)  # lengths around chunks of 64 positions


def spec_of_sums(label, *, causal=False) -> AttentionSpec:
    name, kv_heads = SUMS[label]
    return replace(spec_of(name, causal=causal), num_kv_heads=kv_heads)


def counting(spec, queries, keys=None) -> list[str]:
    """The ops that multiply what the cost counts, of those that accept these lengths.

    `reference` computes in float64 pair by pair, `matmul` forms the pairs of features too,
    `blocked` works in blocks of its own, and `fused` pads the narrower of keys and values.
    """
    counted_in = ("fused", "matmul") if spec.lane == "pairs" else ("scan",)
    if spec.head_width != spec.value_width:
        counted_in = ("matmul",)
    return [op for op in ops_of(spec, queries, keys) if op in counted_in]


def counted(call) -> int:
    register_flops()
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("name", "causal"), KINDS)
def test_flops_equal_an_execution(name, length, causal):
    spec = spec_of(name, causal=causal)
    want = 3 * spec.cost(length).flops
    x = torch.randn(3, length, D_MODEL)
    impls = counting(spec, length)
    pads = spec.head_width != spec.value_width
    assert impls == (["matmul"] if pads else ["fused", "matmul"])
    for impl in impls:
        layer = Attention(spec, impl=impl)
        assert counted(lambda layer=layer: layer(x)) == want
    if not pads:  # native kernels leave later keys out
        assert 0 < counted(lambda: Attention(spec)(x)) <= want


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("name", "causal"), KINDS)
def test_backward_costs_exactly_twice(name, length, causal):
    spec = spec_of(name, causal=causal)
    layer = Attention(spec, impl="matmul")
    out = layer(torch.randn(3, length, D_MODEL, requires_grad=True)).sum()
    assert counted(out.backward) == 2 * 3 * spec.cost(length).flops


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", CHUNKED)
@pytest.mark.parametrize("label", SUMS)
def test_flops_of_sums_of_features_equal_an_execution(label, length, causal):
    """Learning or not: what keeps the sums for a backward pass multiplies as much."""
    spec = spec_of_sums(label, causal=causal)
    want = 3 * spec.cost(length).flops
    assert counting(spec, length) == ["scan"]
    x = torch.randn(3, length, D_MODEL)
    for impl in ("auto", "scan"):
        layer = Attention(spec, impl=impl)
        assert counted(lambda layer=layer: layer(x)) == want
        with torch.no_grad():
            assert counted(lambda layer=layer: layer(x)) == want


@pytest.mark.parametrize("length", CHUNKED)
@pytest.mark.parametrize("name", [name for name in PRESETS if spec_of(name).lane == "recurrence"])
def test_flops_of_recurrences_equal_an_execution(name, length):
    layer = Attention(spec_of(name))
    x = torch.randn(3, length, D_MODEL)
    assert counted(lambda: layer(x)) == 3 * layer.spec.cost(length).flops


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [33, 65])
@pytest.mark.parametrize("label", SUMS)
def test_backward_of_sums_of_features(label, length, causal):
    """Twice the forward, and in a causal one the pairs of a chunk once more: they are not kept."""
    spec = spec_of_sums(label, causal=causal)
    out = Attention(spec, impl="scan")(torch.randn(3, length, D_MODEL, requires_grad=True)).sum()
    pairs = NUM_HEADS * (64**2 * (length // 64) + (length % 64) ** 2) if causal else 0
    again = 2 * spec.kernel.num_features(8) * pairs
    assert counted(out.backward) == 3 * (2 * spec.cost(length).flops + again)


@pytest.mark.parametrize("name", [name for name in PRESETS if spec_of(name).lane != "recurrence"])
def test_flops_above_the_threshold_of_the_fast_product(name):
    spec = spec_of(name, d_model=WIDE)
    impl = counting(spec, 64)[-1]
    layer, x = Attention(spec, impl=impl), torch.randn(2, 64, WIDE, requires_grad=True)
    kept = []
    assert counted(lambda: kept.append(layer(x).sum())) == 2 * spec.cost(64).flops
    assert counted(kept[0].backward) == 4 * spec.cost(64).flops


@pytest.mark.parametrize("lengths", [(1, 9), (64, 7)])
@pytest.mark.parametrize("name", CROSSING)
def test_cross_attention(name, lengths):
    queries, keys = lengths
    spec = spec_of(name)
    x, memory = torch.randn(3, queries, D_MODEL), torch.randn(3, keys, D_MODEL)
    impls = counting(spec, queries, keys)
    assert impls
    for impl in impls:
        layer = Attention(spec, impl=impl)
        assert counted(lambda layer=layer: layer(x, memory)) == 3 * spec.cost(queries, keys).flops


@pytest.mark.parametrize("lengths", [(1, 200), (65, 7)])
@pytest.mark.parametrize("label", SUMS)
def test_cross_attention_of_sums_of_features(label, lengths):
    queries, keys = lengths
    spec = spec_of_sums(label)
    x, memory = torch.randn(3, queries, D_MODEL), torch.randn(3, keys, D_MODEL)
    layer = Attention(spec, impl="scan")
    assert counted(lambda: layer(x, memory)) == 3 * spec.cost(queries, keys).flops


def test_flops_of_sums_of_features_by_hand():
    """Heads 8 wide, 4 of them; values beside their weights are 9 numbers, laid out as 16."""
    maps = 4 * 2 * 32 * 32
    state = 2 * 8 * 16  # to add a key, or to ask for a query
    cost = spec_of("linear").cost(100)
    assert cost.flops == cost.visible_flops == 100 * (maps + 2 * 4 * state)
    features = 2 * 2 * 8 * 256  # omega times a query and a key
    assert spec_of("performer").cost(1).flops == maps + 4 * (features + 2 * 2 * 256 * 16)
    first, last = 64 * 64, 36 * 36  # pairs of two chunks; 64 keys are added, 36 queries ask
    want = 100 * maps + 4 * (2 * (8 + 16) * (first + last) + state * (64 + 36))
    assert spec_of("linear", causal=True).cost(100).flops == want


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(d_model=32, num_heads=4, head_dim=6, num_kv_heads=2, d_source=20),
        AttentionSpec(d_model=32, num_heads=4, head_dim=5, d_source=20, encoder=Optimised()),
        AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, encoder=Efficient()),
        AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, mixing=Alignment(9)),
        AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, mixing=Alignment(9, per_head=True)),
        AttentionSpec(d_model=32, num_heads=4, bias=False),
    ],
    ids=["widths", "optimised-widths", "efficient-gqa", "alignment-gqa", "per-head", "no-bias"],
)
def test_other_compositions(spec):
    x, memory = torch.randn(3, 7, 32), torch.randn(3, 9, spec.widths.d_source)
    layer = Attention(spec, impl="matmul")
    cost = spec.cost(7, 9)
    assert counted(lambda: layer(x, memory)) == 3 * cost.flops
    assert sum(p.numel() for p in layer.parameters()) == cost.parameters


@pytest.mark.parametrize("length", [1, 16, 128, 1024])
def test_closed_forms_of_the_paper_notes(length):
    """2 FLOPs per multiply-add; independent of the number of heads."""
    d, t = 64, length
    want = {
        "standard": 8 * t * d * d + 4 * t * t * d,
        "optimised": 6 * t * d * d + 4 * t * t * d,
        "efficient": 4 * t * d * d + 4 * t * t * d,
        "super_attention": 4 * t * d * d + 6 * t * t * d,
    }
    for name, flops in want.items():
        for num_heads in (1, 2, 8):
            options = {"length": length} if needs_length(name) else {}
            assert preset(name, d, num_heads, **options).cost(length).flops == flops


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 17])
def test_flops_of_segments_before_the_window_equal_an_execution(length, delta):
    past = Infini(4, delta)
    memory = past.build(num_heads=4, num_kv_heads=2, device=None, dtype=None)
    q, k, v = (torch.randn(3, heads, length, 8) for heads in (4, 2, 2))
    assert counted(lambda: memory(q, k, v, q)) == 3 * past.flops(length, 4, 2, 8)


def test_visible_flops_leave_out_what_the_pattern_hides():
    causal, full = spec_of("standard", causal=True), spec_of("standard")
    assert causal.cost(64).flops == full.cost(64).flops == full.cost(64).visible_flops
    hidden = 64 * 63 // 2
    assert causal.cost(64).flops - causal.cost(64).visible_flops == 4 * D_MODEL * hidden


@pytest.fixture
def near():
    """A sparse pattern of a test's own: keys at distance below 70."""

    class Closeby(Pattern):
        def allowed(self, q_positions, k_positions):
            return (q_positions - k_positions).abs() < 70

    yield Closeby()
    del Pattern.table["Closeby"]


def test_a_sparse_pattern_is_charged_by_the_blocks_it_touches(near):
    blocks = sum(
        any(
            abs(q - k) < 70
            for q in range(row * BLOCK, min(300, row * BLOCK + BLOCK))
            for k in range(column * BLOCK, min(300, column * BLOCK + BLOCK))
        )
        for row in range(5)
        for column in range(5)
    )
    assert int((near.layout(300, 300, BLOCK).touched > 0).sum()) == blocks < 25
    assert computed_pairs(near, 300, 300) == blocks * BLOCK * BLOCK
    assert computed_pairs(Causal(), 300, 300) == computed_pairs(Full(), 300, 300) == 90_000


def touched(see, queries, keys, side=BLOCK):
    """Pairs of the blocks in which a pair is allowed, one by one."""
    past = keys - queries
    blocks = {
        (t // side, s // side) for t in range(queries) for s in range(keys) if see(past + t, s)
    }
    return min(queries * keys, len(blocks) * side * side)


@pytest.mark.parametrize("sizes", [(300, 300), (130, 300), (1, 300), (70, 40)], ids=str)
@pytest.mark.parametrize("stride", [2, 3, 100, 1000])
def test_a_strided_pattern_is_charged_residue_by_residue(stride, sizes):
    """In the order of residues its pairs are neighbours."""
    queries, keys = sizes
    far = near = 0
    for residue in range(stride):
        rows = [t for t in range(keys - queries, keys) if t % stride == residue]
        columns = range(residue, keys, stride)
        far += touched(lambda t, s: True, len(rows), len(columns))
        near += touched(lambda t, s: s <= t < s + 3, len(rows), len(columns))
    assert computed_pairs(Strided(stride), queries, keys) == min(far, queries * keys)
    causal = Dilated(3, stride) & Causal()
    assert computed_pairs(causal, queries, keys) == min(near, queries * keys)


def test_parts_of_a_union_are_charged_each_its_way():
    window = touched(lambda t, s: abs(t - s) < 5, 300, 300)
    both = touched(lambda t, s: abs(t - s) < 5 or s < 2 or t < 2, 300, 300)
    alone = sum(
        touched(lambda t, s: abs(t - s) < 2, len(part), len(part))
        for residue in range(30)
        for part in [range(residue, 300, 30)]
    )
    assert computed_pairs(Window(5) | Dilated(2, 30), 300, 300) == window + alone
    assert computed_pairs(Dilated(2, 30) | Window(5) | Global(2), 300, 300) == both + alone
    assert computed_pairs(Window(5) | Strided(2), 300, 300) == 90_000
    assert computed_pairs((Window(5) | Dilated(2, 30)) & Full(), 300, 300) == window + alone


def test_heads_that_differ_are_charged_each_its_own():
    local = touched(lambda t, s: abs(t - s) < 9, 300, 300)
    seen = sum(abs(t - s) < 9 for t in range(300) for s in range(300))
    spec = AttentionSpec(
        d_model=12, num_heads=4, head_dim=5, pattern=PerHead((Window(9), Full(), Causal(), Full()))
    )
    linear = 4 * 2 * 300 * 12 * 20
    cost = spec.cost(300)
    assert cost.flops == linear + 4 * 5 * (local + 3 * 90_000)
    assert cost.visible_flops == linear + 4 * 5 * (seen + 2 * 90_000 + 300 * 301 // 2)


STATES = {
    "standard": (AttentionSpec(d_model=32, num_heads=4), 64),
    "gqa": (AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2), 32),
    "mqa": (AttentionSpec(d_model=32, num_heads=4, num_kv_heads=1), 16),
    "optimised": (AttentionSpec(d_model=32, num_heads=4, encoder=Optimised()), 64),
    "efficient": (AttentionSpec(d_model=32, num_heads=4, encoder=Efficient()), 32),
    "efficient-rope": (
        AttentionSpec(d_model=32, num_heads=4, encoder=Efficient(), position=Rope()),
        64,
    ),
    "latent": (
        AttentionSpec(d_model=32, num_heads=4, num_kv_heads=1, head_dim=13, encoder=Latent()),
        13,
    ),
    "super": (
        AttentionSpec(d_model=32, num_heads=4, encoder=Efficient(), mixing=Alignment(9)),
        64,
    ),
    "super-on-optimised": (
        AttentionSpec(d_model=32, num_heads=4, encoder=Optimised(), mixing=Alignment(9)),
        96,
    ),
    "super-on-standard": (
        AttentionSpec(d_model=32, num_heads=4, encoder=Standard(), mixing=Alignment(9)),
        96,
    ),
}


SUMMED_STATES = {  # heads 8 wide: sums of 8 values and a weight for each feature
    "linear": ({"kernel": Elu()}, 0, 4 * 8 * 9),
    "linear-gqa": ({"kernel": Elu(), "num_kv_heads": 2}, 0, 2 * 8 * 9),
    "linear-wide": ({"kernel": Elu(), "head_dim": 16}, 0, 4 * 16 * 17),
    "performer": ({"kernel": Favor(features=256)}, 0, 4 * (256 * 9 + 1)),
    "performer-mqa": ({"kernel": Favor(features=3), "num_kv_heads": 1}, 0, 3 * 9 + 1),
    "rfa": ({"kernel": Rfa(features=64)}, 0, 4 * 64 * 9),
    "super-linear": ({"kernel": Elu(), "mixing": Alignment(9)}, 32, 4 * 8 * 9),
    "linformer": ({"mixing": LowRank(9, 3)}, 0, 0),
    "linear-of-linformer": ({"kernel": Elu(), "mixing": LowRank(9, 3)}, 0, 0),
}


@pytest.mark.parametrize("name", SUMMED_STATES)
def test_state_of_a_fixed_size(name):
    """Sums of features, and for Favor a logarithm, whatever the length; a mixing keeps values.

    What sums keys of a whole input keeps nothing: it cannot stream.
    """
    axes, numbers, fixed = SUMMED_STATES[name]
    cost = AttentionSpec(d_model=32, num_heads=4, **axes).cost(9)
    assert (cost.state_numbers, cost.state_fixed) == (numbers, fixed)
    assert cost.state_bytes(0) == 4 * fixed
    assert cost.state_bytes(100) == 4 * (100 * numbers + fixed)
    assert cost.state_bytes(7, bytes_per_number=2) == 2 * (7 * numbers + fixed)


@pytest.mark.parametrize("name", STATES)
def test_state(name):
    """Keys and values; x alone where both are x; V' beside raw values where W_A mixes them.

    The next row of V' needs every raw value, which is the key where K = V = x and a third tensor
    otherwise.
    """
    spec, numbers = STATES[name]
    cost = spec.cost(9)
    assert cost.state_numbers == numbers
    assert cost.state_fixed == 0
    assert cost.state_bytes(100) == 400 * numbers
    assert cost.state_bytes(100, bytes_per_number=2) == 200 * numbers


def test_cost_is_plain_data():
    cost = spec_of("standard").cost(7)
    assert cost == Cost(
        parameters=4224,
        flops=8 * 7 * 1024 + 4 * 49 * 32,
        visible_flops=8 * 7 * 1024 + 4 * 49 * 32,
        state_numbers=64,
        state_fixed=0,
    )
