"""The error tree, and the error for an unknown name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from suffice import errors
from suffice.errors import install_line

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
    assert str(error) == "unknown colour 'gren'; did you mean 'green'? Legal: green, red."
    assert errors.did_you_mean("lr", ["clip", "learning_rate"]) == "; did you mean 'learning_rate'?"


def test_unknown_without_anything_near():
    assert str(errors.unknown("colour", 7, ["red"])) == "unknown colour 7. Legal: red."
    assert str(errors.unknown("colour", "x", [])) == "unknown colour 'x'. Legal: none."


ORIGINS = {
    "an index": (None, "pip install 'suffice[hub]'", "pip install suffice-serve"),
    "a folder": (
        {"url": "file:///home/me/suffice", "dir_info": {}},
        "pip install '/home/me/suffice[hub]'",
        "pip install /home/me/suffice/serving",
    ),
    "a file": (
        {"url": "file:///home/me/suffice-0.1.0-py3-none-any.whl", "archive_info": {}},
        "pip install '/home/me/suffice-0.1.0-py3-none-any.whl[hub]'",
        "pip install suffice-serve",
    ),
    "a repository": (
        {"url": "https://host/s.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "pip install 'suffice[hub] @ git+https://host/s.git@abc'",
        "pip install 'suffice-serve @ git+https://host/s.git@abc#subdirectory=serving'",
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_extras_and_siblings_are_installed_from_where_the_package_came(monkeypatch, origin):
    content, *lines = ORIGINS[origin]
    held = SimpleNamespace(read_text=lambda _: None if content is None else json.dumps(content))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: held)
    assert lines == [install_line("suffice[hub]"), install_line("suffice-serve", "serving")]


def test_no_message_assumes_where_the_package_came_from():
    sources = Path(errors.__file__).parent.rglob("*.py")
    assumed = [path for path in sources if "pip install 'suffice[" in path.read_text()]
    assert assumed == []


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (ModuleNotFoundError("No module named 'ray'", name="ray"), "x needs ray, which is not ins"),
        (ModuleNotFoundError("a part", name="jsonschema"), "x needs jsonschema, which is not inst"),
        (ImportError("no name 'Api' in 'hub'", name="hub"), "x: no name 'Api' in 'hub': pip"),
    ],
    ids=["the library", "a part of it", "another version"],
)
def test_what_is_absent_is_named(raised, sentence):
    with (
        pytest.raises(errors.ConfigError, match=rf"^{sentence}.*\[hub\].*, or not\.$"),
        errors.installed_for("x", "hub", ", or not"),
    ):
        raise raised
