"""The error tree, and the error for an unknown name."""

from __future__ import annotations

import pytest

from suffice import errors

BASES = {
    "ConfigError": ValueError,
    "ShapeError": ValueError,
    "MaskError": TypeError,
    "StateError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "DataError": ValueError,
    "CheckpointError": ValueError,
}


@pytest.mark.parametrize("name", BASES)
def test_each_error_is_ours_and_pythons(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.SufficeError)
    assert issubclass(error, BASES[name])
    assert error.__doc__


def test_unknown_names_the_nearest():
    error = errors.unknown("colour", "gren", ["red", "green"])
    assert isinstance(error, errors.ConfigError)
    assert str(error) == "unknown colour 'gren'; did you mean 'green'? Legal: green, red."


def test_unknown_without_anything_near():
    assert str(errors.unknown("colour", 7, ["red"])) == "unknown colour 7. Legal: red."
    assert str(errors.unknown("colour", "x", [])) == "unknown colour 'x'. Legal: none."
