from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.encoders import HeadRMS
from suffice.measure.probe import branches, without
from suffice.measure.probe.checkpoint import kind
from suffice.mixing import Alignment
from suffice.models import LMConfig
from suffice.patterns import Causal, Global, Window
from suffice.testing import assert_close

SIZES = {"vocabulary_size": 30, "length": 32, "d_model": 16, "depth": 2, "mlp_width": 16}
FULL = preset("standard", 16, 2, causal=True)
WINDOW = preset("sliding_window", 16, 2, window=4, causal=True)
SINKS = replace(FULL, pattern=(Window(4) | Global(2)) & Causal())


def model(*specs, seed=0):
    torch.manual_seed(seed)
    return LMConfig(**SIZES, start=0.3).build(list(specs)).eval()


def same_weights(lm, *specs):
    """A model of other specs with the weights of this one, as far as it has them."""
    other = LMConfig(**SIZES).build(list(specs)).eval()
    own = lm.state_dict()
    other.load_state_dict({name: own[name] for name in other.state_dict()})
    return other


def named(lm):
    return {branch.name: branch for branch in branches(lm)}


TOKENS = torch.arange(25)[None] % 30


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("sinks, the first 2 tokens", Window(4) & Causal()),
        ("the window of 4", Global(2) & Causal()),
    ],
)
def test_a_part_of_a_union_is_switched_off(name, left):
    lm = model(SINKS, SINKS)
    found = named(lm)
    assert set(found) == {"sinks, the first 2 tokens", "the window of 4"}
    assert found[name].layers == (0, 1)
    before = lm(TOKENS)
    with without(lm, found[name]) as other:
        got = other(TOKENS)
    want = same_weights(lm, *[replace(FULL, pattern=left)] * 2)(TOKENS)
    assert_close(got, want, "same_math")
    assert not torch.equal(got, before)
    assert torch.equal(lm(TOKENS), before), "as it was"


def test_a_union_that_is_the_whole_pattern_has_parts_too():
    lm = model(*[replace(FULL, pattern=(Window(4) & Causal()) | (Global(1) & Causal()))] * 2)
    assert set(named(lm)) == {"Window(size=4) & Causal()", "Global(tokens=1) & Causal()"}


def test_normalised_queries_and_keys_stay_so_without_a_branch():
    normed = replace(SINKS, norm=HeadRMS())
    lm = model(normed, normed)
    with torch.no_grad():
        lm.blocks[0].attention.k_norm.weight.mul_(3.0)
    with without(lm, named(lm)["the window of 4"]):
        got = lm(TOKENS)
    left = replace(normed, pattern=Global(2) & Causal())
    assert_close(got, same_weights(lm, left, left)(TOKENS), "same_math")
    assert kind(normed).endswith("Causal(), HeadRMS()")


def test_the_memory_of_infini_and_its_segment_are_switched_off():
    infini = preset("infini", 16, 2, segment=4)
    lm = model(infini, infini)
    with torch.no_grad():
        for block in lm.blocks:
            block.attention.past.gate.fill_(0.7)
    memory, segment = branches(lm)
    assert memory.name.startswith("the memory of earlier segments, Infini(segment=4")
    assert segment.name.startswith("what lies within the segment")
    with without(lm, memory):
        got = lm(TOKENS)
    want = same_weights(lm, *[replace(infini, past=FULL.past)] * 2)(TOKENS)
    assert_close(got, want, "same_math")
    with without(lm, segment):
        alone = lm.blocks[0].attention
        told = alone(torch.randn(1, 4, 16)) - alone.o_proj.bias
        assert_close(told, torch.zeros_like(told), "same_math")
        assert lm.blocks[0].attention.past.gate.sigmoid().tolist() == [1.0, 1.0]
    assert lm.blocks[0].attention.past.gate.tolist() == pytest.approx([0.7, 0.7])


def test_the_map_along_the_sequence_is_switched_off():
    mixed = replace(FULL, mixing=Alignment(32))
    lm = model(mixed, mixed)
    (branch,) = branches(lm)
    assert branch.name == "the map along the sequence, Alignment(length=32)"
    with without(lm, branch):
        got = lm(TOKENS)
    assert_close(got, same_weights(lm, FULL, FULL)(TOKENS), "same_math")


def test_layers_of_a_kind_are_switched_off_where_kinds_are_mixed():
    lm = model(WINDOW, FULL)
    found = named(lm)
    name = f"attention of layers with {kind(FULL)}"
    assert set(found) == {name, f"attention of layers with {kind(WINDOW)}"}
    assert found[name].layers == (1,)
    with without(lm, found[name]):
        got = lm(TOKENS)
    with torch.no_grad():
        lm.blocks[1].attention.o_proj.weight.zero_()
        lm.blocks[1].attention.o_proj.bias.zero_()
    assert_close(got, lm(TOKENS), "same_math")


def test_layers_that_hear_in_one_way_have_no_branches():
    assert branches(model(WINDOW, WINDOW)) == ()
    assert branches(model(FULL, FULL)) == ()


def test_a_model_is_as_it_was_after_an_error():
    lm = model(SINKS, SINKS)
    layers = [block.attention for block in lm.blocks]
    with pytest.raises(KeyError), without(lm, branches(lm)[0]):
        raise KeyError
    assert [block.attention for block in lm.blocks] == layers


def test_kinds_are_named_by_every_difference():
    told = kind(replace(preset("infini", 16, 4, segment=4), num_kv_heads=2))
    assert told.endswith("Infini(segment=4, delta=True), 2 of 4 heads with keys of their own")
    assert kind(preset("linear", 16, 4, causal=True)) == "Causal(), Elu()"
    assert kind(preset("efficient", 16, 4, causal=True)) == "Causal(), Efficient()"
    mixed = replace(FULL, mixing=Alignment(32))
    assert kind(mixed) == "Causal(), Alignment(length=32)"
