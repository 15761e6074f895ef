"""A spec: its defaults, its JSON, and every rule that ties its fields together."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from suffice import AttentionSpec
from suffice.combine import Concat, Exclusive
from suffice.encoders import Efficient, Optimised, Standard
from suffice.errors import ConfigError
from suffice.kernels import Softmax
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import Causal, Full, PerHead, Random
from suffice.positions import NoPosition, Rope
from suffice.spec import conflicts, lowering


def spec_of(**changes) -> AttentionSpec:
    return AttentionSpec(**{"d_model": 12, "num_heads": 4, **changes})


def test_defaults():
    spec = spec_of()
    assert (spec.pattern, spec.encoder, spec.mixing) == (Full(), Standard(), NoMixing())
    assert (spec.kernel, spec.position) == (Softmax(), NoPosition())
    assert (spec.kv_heads, spec.head_width, spec.max_length) == (4, 3, None)
    assert spec.score_scale == 3**-0.5
    widths = spec.widths
    assert (widths.d_model, widths.d_source, widths.q, widths.kv) == (12, 12, 12, 12)


def test_derived_sizes():
    spec = spec_of(num_kv_heads=2, head_dim=5, d_source=7, scale=2.0, mixing=Alignment(9))
    assert (spec.kv_heads, spec.head_width, spec.score_scale, spec.max_length) == (2, 5, 2.0, 9)
    assert (spec.widths.d_source, spec.widths.q, spec.widths.kv) == (7, 20, 10)


def test_the_longest_input_is_the_shortest_of_what_is_served():
    assert spec_of(pattern=Random(2, length=7)).max_length == 7
    assert spec_of(pattern=Random(2, length=7), mixing=Alignment(9)).max_length == 7
    assert spec_of(pattern=Random(2, length=7) | Random(1, length=5)).max_length == 5
    assert spec_of(pattern=Random(2)).max_length is None


def test_a_spec_is_a_value():
    spec = spec_of(pattern=Causal())
    assert spec == spec_of(pattern=Causal())
    assert hash(spec) == hash(spec_of(pattern=Causal()))
    assert spec != spec_of()
    assert replace(spec, num_heads=2).num_heads == 2
    with pytest.raises(FrozenInstanceError, match="num_heads"):
        spec.num_heads = 2


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(),
        spec_of(num_kv_heads=2, head_dim=6, d_source=7, bias=False, scale=0.5, dropout=0.1),
        spec_of(pattern=Full() & Causal(), mixing=Alignment(9, init="identity")),
        spec_of(position=Rope(500.0), head_dim=4, encoder=Standard()),
        spec_of(encoder=Efficient()),
    ],
    ids=range(5),
)
def test_json(spec):
    data = json.loads(json.dumps(spec.to_json()))
    assert AttentionSpec.from_json(data) == spec
    assert set(data) == set(spec.__dataclass_fields__) - {"shares"}  # written where it is given


def test_json_may_leave_out_defaults():
    assert AttentionSpec.from_json({"d_model": 12, "num_heads": 4}) == spec_of()


def test_json_refusals():
    with pytest.raises(ConfigError, match="unknown key 'num_head'"):
        AttentionSpec.from_json({"d_model": 12, "num_head": 4})
    with pytest.raises(ConfigError, match="lacks d_model, num_heads"):
        AttentionSpec.from_json({})
    with pytest.raises(ConfigError, match="lacks num_heads"):
        AttentionSpec.from_json({"d_model": 12})
    with pytest.raises(ConfigError, match="unknown pattern 'Windw'"):
        AttentionSpec.from_json({"d_model": 12, "num_heads": 4, "pattern": {"name": "Windw"}})
    with pytest.raises(ConfigError, match="a mixing is stored as a dictionary"):
        AttentionSpec.from_json({"d_model": 12, "num_heads": 4, "mixing": None})


@pytest.mark.parametrize("data", [None, 3, "spec", [1], [["d_model", 12]]], ids=str)
def test_json_that_is_no_dictionary(data):
    with pytest.raises(ConfigError, match="dictionary"):
        AttentionSpec.from_json(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "causal"}, "pattern='causal' is a str, not a pattern; legal: .*Causal"),
        ({"pattern": Causal}, "pattern=.* is a .*, not a pattern; legal: .*as instances"),
        ({"pattern": Rope()}, "is a position, not a pattern"),
        ({"encoder": None}, "encoder=None is a NoneType, not a encoder"),
        ({"mixing": Full()}, "is a pattern, not a mixing"),
        ({"kernel": "softmax"}, "kernel='softmax' is a str, not a kernel"),
        ({"position": 3}, "position=3 is a int, not a position"),
        ({"d_model": 0}, "d_model=0: sizes are whole numbers, at least 1"),
        ({"d_model": 12.0}, "d_model=12.0: sizes"),
        ({"num_heads": True}, "num_heads=True: sizes"),
        ({"num_heads": -4, "head_dim": 0}, "num_heads=-4, head_dim=0: sizes"),
        ({"num_kv_heads": 0}, "num_kv_heads=0: sizes"),
        ({"d_source": "7"}, "d_source='7': sizes"),
        ({"dropout": 1.0}, "dropout=1.0 is not a probability below 1"),
        ({"dropout": -0.1}, "dropout=-0.1 is not a probability"),
        ({"dropout": float("nan")}, "dropout=nan is not a probability"),
        ({"num_heads": 5}, "num_heads=5 does not divide d_model=12; use 1, 2, 3, 4, 6 or 12 heads"),
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=4; use 1, 2 or 4"),
        ({"num_kv_heads": 8}, "num_kv_heads=8 does not divide num_heads=4"),
        (
            {"encoder": Efficient(), "head_dim": 5},
            r"Efficient takes keys and values as column slices .* exactly 12 .* 4 \* 5 = 20",
        ),
        (
            {"encoder": Optimised(), "head_dim": 2},
            r"Optimised takes values as column slices of its input, exactly 12 .* 4 \* 2 = 8",
        ),
        (
            {"encoder": Efficient(), "num_kv_heads": 2, "head_dim": 7},
            r"at most 12 columns, but num_kv_heads \* head_dim = 2 \* 7 = 14",
        ),
        ({"encoder": Efficient(), "d_source": 8}, "exactly 8 columns"),
        (
            {"pattern": PerHead((Full(), Causal())) & Causal()},
            "made for 2 heads, but the layer has 4",
        ),
        ({"position": Rope()}, "Rope rotates features in pairs: head_dim=3 is odd; make it even"),
    ],
    ids=str,
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout": "0.1"}, "dropout"),
        ({"dropout": None}, "dropout"),
        ({"scale": "big"}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": float("inf")}, "scale"),
        ({"bias": "no"}, "bias"),
        ({"bias": None}, "bias"),
    ],
    ids=str,
)
def test_settings_of_a_wrong_type_are_refused(changes, message):
    """Nothing given may pass unread: bias="no" would build biases."""
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


def test_every_broken_rule_is_reported_at_once():
    with pytest.raises(ConfigError) as refusal:
        spec_of(num_kv_heads=3, head_dim=5, encoder=Efficient(), position=Rope())
    for told in ("num_kv_heads=3 does not divide", "column slices", "head_dim=5 is odd"):
        assert told in str(refusal.value)


def test_types_come_before_rules():
    with pytest.raises(ConfigError) as refusal:
        spec_of(d_model="wide", pattern=3, dropout=2.0)
    for told in ("pattern=3", "d_model='wide'", "dropout=2.0"):
        assert told in str(refusal.value)


def test_legal_edges():
    assert spec_of(dropout=0.0).dropout == 0.0
    assert spec_of(num_heads=12, num_kv_heads=1).head_width == 1
    assert spec_of(num_heads=5, head_dim=2).widths.q == 10
    assert spec_of(encoder=Efficient(), num_kv_heads=1, head_dim=12).widths.kv == 12
    assert spec_of(encoder=Efficient(), head_dim=2, d_source=8).widths.kv == 8
    assert spec_of(encoder=Optimised(), num_kv_heads=2).widths.kv == 6
    assert spec_of(pattern=PerHead((Full(), Causal()) * 2)).pattern.heads == 4
    assert spec_of(scale=-1.0).score_scale == -1.0
    assert spec_of(scale=0.0).score_scale == 0.0


def test_a_legal_spec_has_no_conflicts():
    assert conflicts(spec_of()) == []


def test_a_value_that_no_record_holds_is_not_lowered(monkeypatch):
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), combine=Exclusive())
    known = lowering.KNOWN | {"combine": (*lowering.KNOWN["combine"], Exclusive)}
    monkeypatch.setattr(lowering, "KNOWN", known)
    assert spec.lower() is None
    assert replace(spec, combine=Concat()).lower() is not None
