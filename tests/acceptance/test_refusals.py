"""What an op or a layer refuses by design, with the sentence it says; everything else runs.

The other tests here ask the library which op takes which call, so an op that refused too much
would leave them unseen. What is accepted and what is refused is therefore written down here.
"""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, attend
from suffice.errors import ConfigError, UnsupportedError
from suffice.ops import OPS
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, bits, documents, normal, padded

from .mechanisms import (
    D_MODEL,
    DOCUMENTED,
    LENGTH,
    MASKED,
    NAMES,
    RECURRENT,
    SPECS,
    accepting,
    layer_of,
    ops_of,
)

SHARED, OWN = (4, 2), (4, 4)
ALL = "auto fused folded blocked matmul reference"
HALF = "read float32, float16, bfloat16, not torch.float64"
CUDA, NO_FEATURES = "fast on CUDA only", "Softmax weighs pairs: there are no features to sum"
REBUILT = "rebuilt for the data of each batch"
PAIRS, FOLD = "name pairs one by one", "every query head has its own keys: nothing to fold"
NOTHING = "there is no query or no key"
NUMBERS = torch.tensor([[0, 0, 0, 1, 1, 1]]).expand(2, -1)
CALLS = {  # heads, value width, keys, arguments, who accepts; what the others say
    "plain": (SHARED, 8, 6, {}, ALL, {}),
    "causal": (SHARED, 8, 6, {"pattern": Causal()}, ALL, {}),
    "window": (SHARED, 8, 6, {"pattern": Window(2)}, ALL, {}),
    "own-heads": (OWN, 8, 6, {}, "auto fused blocked matmul reference", {"folded": FOLD}),
    "valid": (SHARED, 8, 6, {"valid": padded(2, 6, "inside")}, ALL, {"flex": REBUILT}),
    "mask": (
        SHARED,
        8,
        6,
        {"mask": bits(2, 1, 6, 6, seed=1)},
        "auto fused folded matmul reference",
        {"blocked": PAIRS, "flex": REBUILT},
    ),
    "segments": (
        SHARED,
        8,
        6,
        {"segments": (NUMBERS, NUMBERS)},
        "auto fused folded matmul reference",
        {"blocked": PAIRS, "flex": REBUILT},
    ),
    "widths": (SHARED, 5, 6, {}, "auto fused folded blocked matmul reference", {}),
    "no-keys": (
        SHARED,
        8,
        0,
        {},
        "auto matmul reference",
        dict.fromkeys(("fused", "folded", "blocked"), NOTHING),
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("impl", ["auto", *OPS])
def test_each_op_computes_or_says_why_not(call, impl):
    heads, width, keys, arguments, accepted, sentences = CALLS[call]
    data = arguments.keys() - {"pattern"}
    pattern = {"pattern": arguments["pattern"]} if "pattern" in arguments else {}
    able = accepting(6, keys, heads=heads, widths=(8, width), data=data, **pattern)
    assert {"auto", *able} == set(accepted.split())
    inputs = (
        normal(2, heads[0], 6, 8, seed=1),
        normal(2, heads[1], keys, 8, seed=2),
        normal(2, heads[1], keys, width, seed=3),
    )
    if impl in accepted.split():
        assert_close(
            attend(*inputs, impl=impl, **arguments), attend(*inputs, impl="reference", **arguments)
        )
        return
    known = {
        "flex": CUDA,
        "native": HALF,
        "native_decode": HALF,
        "scan": NO_FEATURES,
        "native_scan": NO_FEATURES,
    }
    sentence = {**known, **sentences}[impl]
    with pytest.raises(UnsupportedError, match=f"impl='{impl}' cannot compute this: .*{sentence}"):
        attend(*inputs, impl=impl, **arguments)


FEATURES = {"linear": "Elu", "performer": "Favor", "rfa": "Rfa"}


@pytest.mark.parametrize("kind", ["", "causal-"])
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("data", ["plain", "valid", "segments"])
def test_kernels_of_features_have_three_ops(kind, name, data):
    spec = SPECS[kind + name]
    assert ops_of(spec, data=() if data == "plain" else {data}) == ("scan", "matmul", "reference")
    for impl in ("fused", "folded", "blocked", "flex"):
        sentence = f"impl='{impl}' cannot .*{FEATURES[name]} gives pairs no weights of their own"
        with pytest.raises(UnsupportedError, match=sentence):
            layer_of(kind + name, impl=impl)


@pytest.mark.parametrize("name", [name for name in NAMES if SPECS[name].lane == "pairs"])
def test_ops_of_a_softmax(name):
    spec = SPECS[name]
    shared = ("folded",) if spec.kv_heads < spec.num_heads else ()
    dense = ("fused", *shared, "matmul", "reference")
    assert set(ops_of(spec)) == set(ops_of(spec, data={"valid"})) == {*dense, "blocked"}
    if name in MASKED:
        assert set(ops_of(spec, data={"mask"})) == set(dense)


def test_no_op_drops_out_of_these_tests():
    """Each op computes some mechanism here, but for those of CUDA and of float32."""
    elsewhere = {"flex", "native", "native_decode", "native_scan"}
    assert {op for spec in SPECS.values() for op in ops_of(spec)} == {
        *OPS,
        "recurrence",
    } - elsewhere


MIXED = ("super_attention", "toeplitz_super", "linformer")
MASKS = {
    **{f"{kind}{name}": "mixes values before any mask applies" for kind in ("", "causal-")
       for name in MIXED},
    **{f"{kind}{name}": "sums over keys without looking at pairs" for kind in ("", "causal-")
       for name in FEATURES},
    **{f"causal-{name}": "sums over keys without looking at pairs" for name in RECURRENT},
    "super-per-head": "mixes values before any mask applies",
    "causal-infini": "neither documents nor a mask could be kept apart",
}  # fmt: skip


def test_who_takes_masks_and_documents():
    assert set(NAMES) - set(MASKED) == MASKS.keys() & set(NAMES)
    assert set(NAMES) - set(DOCUMENTED) == {"linformer", "causal-infini", "causal-forgetting"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MASKED])
def test_a_mask_that_could_not_hide_is_refused(name):
    x, mask = normal(4, LENGTH, D_MODEL, seed=1), bits(4, 1, LENGTH, LENGTH, seed=2)
    with pytest.raises(ConfigError, match=MASKS[name]):
        layer_of(name)(x, mask=mask)
    with pytest.raises(ConfigError, match=MASKS[name]):
        layer_of(name).weights(x, mask=mask)


MEETING = "documents would meet in its|neither documents nor a mask|cross-attention has two"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DOCUMENTED])
def test_documents_that_would_meet_are_refused(name):
    layer = layer_of(name)
    x, segments = normal(4, LENGTH, D_MODEL, seed=1), documents(4, LENGTH)
    for arguments in (
        {"segments": segments},
        {"segments": segments, "valid": padded(4, LENGTH, "left")},
        {"source": x, "segments": segments, "source_segments": segments},
    ):
        for call in (layer, layer.weights):
            with pytest.raises(ConfigError, match=MEETING):
                call(x, **arguments)


def test_an_unknown_impl_is_refused():
    with pytest.raises(ConfigError, match="unknown impl 'quick'"):
        Attention(SPECS["standard"], impl="quick")
