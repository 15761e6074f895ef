"""Closed forms of bytes and work, held against models that were made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.choose import Composition, Request, base_of
from suffice.choose.bench import weight_bytes
from suffice.choose.candidates import Candidate, needs
from suffice.choose.timing import CandidateTimer
from suffice.generate import generate
from suffice.models import LMConfig
from suffice.positions import Rope

from .worlds import lm_base, translator_base

CPU = torch.device("cpu")


def needs_of(name, base):
    one = Candidate.of(Composition.parse(name), base)
    return one, needs(one, base)


WIDE = replace(
    lm_base(length=300),
    config=LMConfig(vocabulary_size=64, length=316, d_model=128, depth=2, mlp_width=256),
)


@pytest.mark.parametrize(
    "name",
    [
        "standard",
        "efficient",
        "mqa",
        "toeplitz_super",
        "linear",
        "standard+window:64",
        "standard+window:64+sinks:4",
        "standard+memory:8",
        "standard+memory:8+values:4",
        "efficient+memory:4",
    ],
)
@pytest.mark.parametrize("rotates", [False, True])
def test_state_bytes_equal_the_stored_bytes(name, rotates):
    base = replace(WIDE, position=Rope()) if rotates else WIDE
    one, need = needs_of(name, base)
    model = CandidateTimer(base, CPU).model(one)
    ids = torch.randint(64, (1, base.length), generator=torch.Generator().manual_seed(0))
    state = generate(
        model, ids, max_new_tokens=2, memory=one.memory, keep_state=True, impl="torch"
    ).state
    rooms = 1.7 if one.memory.lossy else 1.3  # stores that grow keep spare room
    rooms += one.memory.window is not None  # a rolling one moves its window rarely
    assert need.state <= 1.03 * state.nbytes
    assert state.nbytes <= rooms * need.state


@pytest.mark.parametrize("bits", [None, 16, 8, 4])
def test_weight_bytes_equal_the_stored_bytes(bits):
    name = "standard" if bits is None else f"standard+weights:{bits}"
    one, need = needs_of(name, WIDE)
    stored = weight_bytes(CandidateTimer(WIDE, CPU).model(one))
    positions = WIDE.config.length * 128 * 4  # are not packed
    exact = 0 if bits is None else positions
    assert stored - exact <= 1.06 * need.weights
    assert need.weights <= 1.02 * stored


def test_a_quantised_cache_needs_its_bytes():
    """Efficient, 512 features, 16 heads, 2,048 tokens in 8 bits: 31 blocks and 64 tokens."""
    config = LMConfig(vocabulary_size=8, length=2064, d_model=512, depth=1, mlp_width=8)
    base = replace(lm_base(length=2048, heads=16, depth=1), config=config)
    _, need = needs_of("efficient+memory:8", base)
    assert need.state == 31 * 64 * 512 + 31 * 8 * 512 + 64 * 512 * 4


def test_work_of_a_token_equals_the_bytes_read():
    _, plain = needs_of("standard", WIDE)
    untied = replace(WIDE, config=replace(WIDE.config, tied=False))
    _, with_head = needs_of("standard", untied)
    assert with_head.weights - plain.weights == 64 * 128 * 4
    assert with_head.work == plain.work  # the rows of tokens are looked up
    assert plain.work == plain.weights + plain.state
    _, near = needs_of("standard+window:64", WIDE)
    assert near.work == near.weights + 2 * 2 * 128 * 64 * 4


def test_the_work_of_an_input_is_its_products():
    base = base_of(Request(task="image", model="digits_vit"))
    one, need = needs_of("standard", base)
    attention = sum(spec.cost(16).visible_flops for spec in one.specs)
    mlps = 2 * 16 * 2 * (2 * 64 * 128 + 64 + 128)
    assert need.work == attention + mlps
    assert need.state == 0
    assert need.total == need.weights + need.activations


def test_a_translator_keeps_its_source_once_where_nothing_is_learned():
    base = translator_base(length=32)
    _, plain = needs_of("standard", base)
    _, shared = needs_of("efficient", base)
    assert plain.state == 4 * 32 * (2 * 2 * 16 + 2 * 2 * 16)
    assert shared.state == 4 * 32 * (2 * 16 + 16)


def test_activations_are_the_widest_layers():
    _, need = needs_of("standard", lm_base(length=64))
    assert need.activations == 4 * 64 * (2 * 16 + 4 * 16)
    swiglu = lm_base(length=64)
    wide = replace(swiglu, config=replace(swiglu.config, activation="swiglu", mlp_width=100))
    assert needs_of("standard", wide)[1].activations == 4 * 64 * (2 * 16 + 3 * 100)
