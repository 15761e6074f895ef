"""The table of an axis, and the JSON form of its values."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from suffice.encoders import Efficient, Encoder
from suffice.errors import ConfigError
from suffice.kernels import Kernel
from suffice.mixing import Alignment, Mixing, NoMixing
from suffice.patterns import And, Causal, Full, Or, Pattern
from suffice.positions import NoPosition, Position, Rope
from suffice.records import Axis


@pytest.fixture
def family():
    """A family of its own, so that no test leaves a value in the library's tables."""

    class Colour(Axis, family="colour"):
        pass

    return Colour


def test_defining_a_value_registers_it(family):
    @dataclass(frozen=True)
    class Red(family):
        shade: float = 0.5

    assert family.table == {"Red": Red}
    assert Red(0.2).to_json() == {"name": "Red", "shade": 0.2}
    assert family.from_json({"name": "Red", "shade": 0.2}) == Red(0.2)
    assert family.from_json({"name": "Red"}) == Red()
    assert Red.samples() == (Red(),)


def test_families_have_tables_of_their_own(family):
    assert family.table == {}
    assert set(Pattern.table) >= {"And", "Causal", "Full", "Or"}
    assert set(Encoder.table) == {"Efficient", "Latent", "Optimised", "Standard"}
    assert set(Mixing.table) >= {"Alignment", "NoMixing"}
    assert set(Position.table) >= {"NoPosition", "Rope"}
    assert set(Kernel.table) >= {"Softmax"}


def test_an_underscore_keeps_a_base_out_of_the_table(family):
    class _Base(family):
        pass

    assert family.table == {}


def test_two_values_of_one_name_are_refused(family):
    def define():
        @dataclass(frozen=True)
        class Red(family):
            pass

        return Red

    define()
    again = define()  # the same definition once more, as a reloaded module makes it
    assert family.table["Red"] is again
    with pytest.raises(ConfigError, match="colour 'Red' is already defined in .*another class"):
        type("Red", (family,), {"__module__": "elsewhere"})


@pytest.mark.parametrize(
    "value",
    [
        Full(),
        Causal(),
        Full() & Causal(),
        (Full() | Causal()) & Causal(),
        Or((Causal(), Full(), And((Causal(), Full())))),
        Alignment(9, per_head=True, bias=False, init="identity"),
        NoMixing(),
        Rope(500.0),
        NoPosition(),
        Efficient(),
    ],
    ids=repr,
)
def test_round_trip(value):
    base = next(b for b in type(value).__mro__ if "Axis" in [c.__name__ for c in b.__bases__])
    text = json.dumps(value.to_json())
    assert base.from_json(json.loads(text)) == value


@pytest.mark.parametrize("data", [None, 3, "Full", [], ["name"], {}, {"nmae": "Full"}])
def test_data_that_is_no_value(data):
    with pytest.raises(ConfigError, match="a pattern is stored as a dictionary with a 'name'"):
        Pattern.from_json(data)


def test_unknown_names_and_fields():
    with pytest.raises(ConfigError, match="unknown pattern 'Casual'; did you mean 'Causal'"):
        Pattern.from_json({"name": "Casual"})
    with pytest.raises(ConfigError, match="unknown position 'Causal'"):
        Position.from_json({"name": "Causal"})
    with pytest.raises(ConfigError, match="unknown field of Rope 'tehta'; did you mean 'theta'"):
        Position.from_json({"name": "Rope", "tehta": 2.0})
    with pytest.raises(ConfigError, match="unknown pattern 'Casual'"):
        Pattern.from_json({"name": "And", "parts": [{"name": "Full"}, {"name": "Casual"}]})


@pytest.mark.parametrize("name", [None, 3, ["Full"], {"name": "Full"}])
def test_a_name_that_is_no_word(name):
    with pytest.raises(ConfigError, match="pattern"):
        Pattern.from_json({"name": name})


@pytest.mark.parametrize(
    ("family", "data", "told"),
    [
        (Mixing, {"name": "Alignment"}, "length"),
        (Mixing, {"name": "Alignment", "length": "9"}, "length"),
        (Mixing, {"name": "Alignment", "length": True}, "length"),
        (Mixing, {"name": "Alignment", "length": 9, "bias": "no"}, "bias"),
        (Mixing, {"name": "Alignment", "length": 9, "per_head": 1.5}, "per_head"),
        (Mixing, {"name": "Alignment", "length": 9, "init": 3}, "init"),
        (Position, {"name": "Rope", "theta": "many"}, "theta"),
        (Position, {"name": "Rope", "theta": None}, "theta"),
        (Position, {"name": "Rope", "theta": float("inf")}, "theta"),
        (Pattern, {"name": "And", "parts": 3}, "And"),
        (Pattern, {"name": "And"}, "parts"),
    ],
    ids=str,
)
def test_fields_of_a_wrong_type_are_told_as_a_sentence(family, data, told):
    """Stored data is untrusted: it must fail with one clear error, not somewhere later."""
    with pytest.raises(ConfigError, match=told):
        family.from_json(data)
