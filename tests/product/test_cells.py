"""The product of the axes: every cell is legal or refused, a cover of its pairs is computed."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.encoders import LinearEncoder
from suffice.errors import ConfigError
from suffice.ops import OPS
from suffice.testing import assert_close, documents, drawn, normal, padded

from .cells import (
    AXES,
    BIASES,
    DATA,
    KV_HEADS,
    PATTERNS,
    POSITIONS,
    PROJECTIONS,
    Cell,
    cells,
    refused,
)

BATCH = 2
ADVICE = ("use ", "give ", "change ", "choose ", "leave ", "legal: ")


def inputs(cell: Cell) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return x and what restricts the call."""
    length = cell.composition.length
    data = {}
    if cell.data in ("valid", "both"):
        data["valid"] = padded(BATCH, length, "inside", seed=1)
    if cell.data in ("segments", "both"):
        data["segments"] = documents(BATCH, length, seed=2)
    return normal(BATCH, length, cell.spec.d_model, seed=1), data


def run(layer: Attention, x: torch.Tensor, data) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x, **data)
    sources = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out.square().sum(), sources)]


def every_op_equals_the_reference(cell: Cell) -> None:
    x, data = inputs(cell)
    weights = drawn(Attention(cell.spec, impl="reference", dtype=torch.float64), seed=3)
    want = run(weights, x, data)
    assert all(torch.isfinite(part).all() for part in want)
    assert (want[1] != 0).any()
    for name in cell.ops:
        layer = Attention(cell.spec, impl=name, dtype=torch.float64)
        layer.load_state_dict(weights.state_dict())
        for a, b in zip(run(layer, x, data), want, strict=True):
            assert_close(a, b)


def causal_cells_do_not_look_ahead(cell: Cell) -> None:
    if not cell.spec.pattern.causal:
        return
    x, data = inputs(cell)
    layer = drawn(Attention(cell.spec, dtype=torch.float64), seed=3)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(layer(x, **data)[:, :3].square().sum(), x)
    assert (slope[:, :3] != 0).any()
    assert torch.equal(slope[:, 3:], torch.zeros_like(slope[:, 3:]))


def data_is_refused(cell: Cell) -> None:
    x, data = inputs(cell)
    with pytest.raises(ConfigError, match="; give one document per row"):
        Attention(cell.spec, dtype=torch.float64)(x, **data)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_cells(pattern):
    """Output and gradients of every op, and no look-ahead."""
    own = [cell for cell in cells() if cell.composition.pattern == pattern]
    assert own
    for cell in own:
        checks = [every_op_equals_the_reference, causal_cells_do_not_look_ahead]
        for check in [data_is_refused] if cell.refuses_data else checks:
            try:
                check(cell)
            except Exception as error:
                raise AssertionError(f"{cell}: {check.__name__}: {error}") from error


def test_every_op_is_run():
    elsewhere = {"flex", "native", "native_decode", "native_scan"}  # on CUDA; float32
    assert {name for cell in cells() for name in cell.ops} == {*OPS, "recurrence"} - elsewhere


def test_illegal_compositions_are_refused_with_a_sentence():
    """It names what does not go together, and says what to do."""
    assert len(refused()) > 1000
    for composition, sentence in refused().items():
        names = [type(value).__name__ for value in composition[:5]]
        names.append(f"num_kv_heads={composition.kv_heads}")
        assert len(sentence) >= 20, composition
        assert any(name in sentence for name in names), f"{composition}: {sentence}"
        assert any(word in sentence.lower() for word in ADVICE), f"{composition}: {sentence}"


def test_legal_compositions_survive_json():
    for cell in cells():
        again = AttentionSpec.from_json(json.loads(json.dumps(cell.spec.to_json())))
        assert again == cell.spec
        assert repr(again) == repr(cell.spec)
        assert hash(again) == hash(cell.spec)


def test_odd_head_widths_and_slices():
    """Legal without a position that turns pairs; column slices must fit their input."""
    linear = [encoder for encoder in PROJECTIONS if isinstance(encoder, LinearEncoder)]
    for encoder, position, kv_heads in product(linear, POSITIONS, KV_HEADS):
        sizes = {"d_model": 12, "num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 5}
        learned = encoder.learns_keys and (encoder.learns_values or encoder.shares)
        fits = learned or kv_heads * 5 < 12 and kv_heads < 4
        turns = bool(position.conflicts(5))
        if fits and not turns:
            assert AttentionSpec(**sizes, encoder=encoder, position=position).head_width
            continue
        with pytest.raises(ConfigError) as refusal:
            AttentionSpec(**sizes, encoder=encoder, position=position)
        assert ("head_dim=5" in str(refusal.value)) is turns
        assert ("column slices" in str(refusal.value)) is not fits


def test_the_cells_cover_every_sample():
    """Every sample of every axis is run with all kinds of data, with a bias and without."""
    for place, values in enumerate(AXES.values()):
        for value in values:
            own = [cell for cell in cells() if cell.composition[place] is value]
            assert {cell.data for cell in own} == set(DATA), value
            assert {cell.bias for cell in own} == set(BIASES), value
