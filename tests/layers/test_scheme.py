from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.layers.packed import Scheme


@pytest.mark.parametrize(
    ("inputs", "bits", "group"),
    [
        (768, 8, 128),
        (288, 8, 96),
        (4, 8, 4),
        (130 * 4, 8, 104),
        (2048, 4, 32),
        (24, 4, 24),
        (40, 4, 8),
        (7, 16, None),
    ],
)
def test_the_widest_group_that_fits(inputs, bits, group):
    assert Scheme.of(inputs, bits) == Scheme(bits=bits, group=group)


def test_json_and_names():
    for scheme, name in ((Scheme(bits=16), "float16"), (Scheme(bits=4, group=32), "int4/32")):
        assert str(scheme) == name
        assert Scheme.from_json(scheme.to_json()) == scheme
    assert Scheme(bits=16).to_json() == {"bits": 16}


def test_illegal_schemes_are_refused():
    with pytest.raises(ConfigError, match="bits=3"):
        Scheme(bits=3)
    with pytest.raises(ConfigError, match="bits=16 with group=32"):
        Scheme(bits=16, group=32)
    with pytest.raises(ConfigError, match="bits=8 with group=None"):
        Scheme(bits=8)
    with pytest.raises(ConfigError, match="group='32'"):
        Scheme(bits=8, group="32")
    with pytest.raises(ConfigError, match="12 inputs"):
        Scheme.of(12, 4)
    with pytest.raises(ConfigError, match="group=64 for 96 inputs"):
        Scheme.of(96, 8, 64)


@pytest.mark.parametrize("data", [None, 8, {}, {"group": 32}, {"bits": 8, "group": 4, "more": 1}])
def test_other_data_is_refused(data):
    with pytest.raises(ConfigError, match="is no scheme"):
        Scheme.from_json(data)
