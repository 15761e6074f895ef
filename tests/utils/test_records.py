"""Fields are checked against their annotations; records and axis values survive JSON."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import pytest

from suffice.encoders import Efficient
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import And, Causal, Full, Or, Pattern
from suffice.positions import NoPosition, Position, Rope
from suffice.spec import AXES
from suffice.utils.records import (
    Axis,
    check_fields,
    check_keys,
    decode,
    encode,
    field_errors,
    is_number,
    is_whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def test_no_value_of_the_library_is_computed_as_its_parent():
    """Ops, exports and conversions match classes: a subclass never gets as far as one of them."""
    families = [family for family in Axis.__subclasses__() if family.__module__[:8] == "suffice."]
    values = {f.family: [v for v in f.table.values() if v.__module__[:8] == "suffice."]
              for f in families}  # fmt: skip
    assert values.keys() >= AXES.keys()
    for family in families:
        before = dict(family.table)
        for value in values[family.family]:
            for name in ("Own", "_Own"):
                with pytest.raises(ConfigError, match=f"{name} is a subclass of {value.__name__},"):
                    type(name, (value,), {"__module__": "elsewhere"})
        assert family.table == before


def test_two_values_of_one_name_are_refused(family):
    def define():
        @dataclass(frozen=True)
        class Red(family):
            pass

        return Red

    define()
    again = define()  # the same definition once more, as a reloaded module makes it
    assert family.table["Red"] is again
    with pytest.raises(ConfigError, match="'Red'"):
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
    with pytest.raises(ConfigError, match="'name'"):
        Pattern.from_json(data)


def test_unknown_names_and_fields():
    with pytest.raises(ConfigError, match="unknown pattern 'Casual'"):
        Pattern.from_json({"name": "Casual"})
    with pytest.raises(ConfigError, match="'Causal'"):
        Position.from_json({"name": "Causal"})
    with pytest.raises(ConfigError, match="unknown key 'tehta'"):
        Position.from_json({"name": "Rope", "tehta": 2.0})
    with pytest.raises(ConfigError, match="unknown pattern 'Casual'"):
        Pattern.from_json({"name": "And", "parts": [{"name": "Full"}, {"name": "Casual"}]})


@dataclass(frozen=True)
class Settings:
    width: int = 3
    rate: float = 0.5
    name: str | None = None
    flag: bool = False
    sizes: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 0.5)
    order: Literal["up", "down"] = "up"
    either: int | str = 0
    pattern: Pattern = Full()
    unchecked: Any = None
    unresolved: Mapping[str, int] | None = None

    def __post_init__(self):
        check_fields(self)


@pytest.mark.parametrize(
    "values",
    [
        {"width": -1, "rate": 2, "name": "a", "flag": True, "sizes": (1, 2)},
        {"pair": (2, 3), "order": "down", "either": "x", "pattern": Causal()},
        {"unchecked": object(), "unresolved": {"a": 1}},
    ],
)
def test_fields_of_their_types(values):
    settings = Settings(**values)
    assert all(getattr(settings, name) == value for name, value in values.items())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 2.0),
        ("width", True),
        ("width", None),
        ("rate", "0.5"),
        ("rate", math.nan),
        ("rate", 10**400),
        ("rate", False),
        ("name", 3),
        ("flag", 1),
        ("flag", None),
        ("sizes", [1, 2]),
        ("sizes", (1, "2")),
        ("pair", (1, 2, 3)),
        ("order", "left"),
        ("either", 0.5),
        ("pattern", Rope()),
        ("pattern", None),
    ],
)
def test_a_field_of_another_type_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"Settings: {name}="):
        Settings(**{name: value})


def test_numbers_of_numpy_become_those_of_python():
    settings = Settings(
        width=np.int64(4), rate=np.float32(0.5), sizes=(np.int32(1), 2), either=np.int8(3)
    )
    assert settings == Settings(width=4, rate=0.5, sizes=(1, 2), either=3)
    numbers = (settings.width, settings.rate, *settings.sizes, settings.either)
    assert [type(n) for n in numbers] == [int, float, int, int, int]
    assert Pattern.table["Window"](np.int64(3)).to_json() == {"name": "Window", "size": 3}
    assert field_errors(Settings()) == []


@pytest.mark.parametrize("header", ["", "from __future__ import annotations\n"])
def test_values_are_checked_however_their_module_writes_annotations(family, header, monkeypatch):
    """Without the import, annotations are types; with it, they are texts."""
    source = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Blue(family):
    shade: int
    inner: family | None = None
"""
    module = ModuleType("user_module")
    module.family = family
    monkeypatch.setitem(sys.modules, "user_module", module)
    exec(compile(header + source, "user_module.py", "exec", dont_inherit=True), vars(module))
    Blue = module.Blue
    assert family.from_json(Blue(3).to_json()) == Blue(3)
    for shade in ("dark", 0.5, None, True):
        with pytest.raises(ConfigError, match="shade"):
            Blue(shade)


@pytest.mark.parametrize("value", [3, 0, -2, np.int64(3), np.uint8(0)])
def test_whole_numbers(value):
    assert is_whole(value)
    assert is_number(value)
    assert is_whole(value, least=1) == (value >= 1)


@pytest.mark.parametrize("value", [True, np.bool_(1), "3", None, 3.0, np.float64(3.0), [3]])
def test_what_is_no_whole_number(value):
    assert not is_whole(value)
    assert is_number(value) == isinstance(value, float)


class Loss(TypedDict):
    value: float


@dataclass(frozen=True)
class Run:
    name: str
    losses: tuple[float, ...]
    best: Loss
    pair: tuple[int, str] = (0, "")
    seeds: dict[str, int] | None = None
    note: int | str = 0


RUN = {"name": "a", "losses": [1, "inf"], "best": {"value": 0.5}, "pair": [1, "b"]}


def test_records_survive_json():
    run = decode(Run, json.loads(json.dumps(RUN)), where="run.json")
    assert run == Run("a", (1.0, math.inf), {"value": 0.5}, (1, "b"))
    assert encode({"losses": run.losses}) == {"losses": [1.0, "inf"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nmae": 3}, "run.json has the unknown key 'nmae'; did you mean 'name'"),
        ({"name": 3}, "run.json: name is 3"),
        ({"losses": 3}, "losses is 3"),
        ({"losses": [1, "many"]}, r"losses\[1\] is 'many'"),
        ({"losses": [True]}, r"losses\[0\] is True"),
        ({"best": {}}, "best lacks value"),
        ({"best": {"value": 1, "at": 2}}, "'at'"),
        ({"pair": [1]}, "pair holds 1 items; it must hold 2"),
        ({"pair": [True, "b"]}, r"pair\[0\] is True"),
        ({"seeds": {"a": "b"}}, "seeds: a is 'b'"),
        ({"note": None}, "note is None"),
    ],
)
def test_data_that_does_not_fit_a_record(change, named):
    with pytest.raises(DataError, match=named):
        decode(Run, RUN | change, where="run.json")
    with pytest.raises(CheckpointError, match=named):
        decode(Run, RUN | change, where="run.json", error=CheckpointError)


def test_a_value_that_the_record_refuses():
    with pytest.raises(DataError, match="s.json.*rate=nan"):
        decode(Settings, {"width": 3, "rate": "nan"}, where="s.json")


def test_keys_of_plain_data():
    check_keys({"a": 1}, ["a", "b"], ["a"], where="it")
    with pytest.raises(ConfigError, match="it lacks b"):
        check_keys({"a": 1}, ["a", "b"], ["b"], where="it", error=ConfigError)
