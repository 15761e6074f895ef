"""The library is found, loaded, and missed where it ought to be there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from suffice.errors import ConfigError
from suffice.native import library
from tests.native.codings import needs_kernels


@pytest.fixture
def fresh():
    """Find the library again, before and after the test."""
    library._loaded.cache_clear()
    yield
    library._loaded.cache_clear()


COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is here to build the kernels")
def test_where_there_is_a_compiler_there_are_kernels():
    assert library.available(), library.why_not()
    assert library.why_not() == ""


@needs_kernels
def test_another_build_is_loaded_where_it_is_told(fresh, monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    shutil.copy(library._path(), other)
    monkeypatch.setenv("SUFFICE_KERNELS", str(other))
    assert library.library()._name == str(other)
    assert library.instructions() in library.library().suffice_isas().decode().split()


def test_a_library_that_cannot_be_loaded_is_told(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    monkeypatch.setenv("SUFFICE_KERNELS", str(broken))
    assert not library.available()
    assert library.why_not().startswith("broken.so cannot be loaded: ")
    with pytest.raises(ConfigError, match="no native kernels here: broken.so cannot be loaded"):
        library.instructions()


def test_where_nothing_was_built_it_is_told(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("SUFFICE_KERNELS", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    assert library.why_not() == (
        "they were not built, as the installation found no C++ compiler it can use"
    )


@needs_kernels
def test_an_installed_library_is_found_beside_an_editable_package(fresh, monkeypatch, tmp_path):
    placed = tmp_path / "site" / "_kernels.so"
    placed.parent.mkdir()
    shutil.copy(library._path(), placed)
    monkeypatch.delenv("SUFFICE_KERNELS", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))

    class Found:
        origin = str(placed)

    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: Found)
    assert library._path() == Path(placed)
    assert library.available()


@needs_kernels
def test_only_instructions_that_are_here_can_be_used():
    kernels = library.library()
    before = kernels.suffice_isa()
    assert kernels.suffice_use_isa(b"quantum") == 1
    assert kernels.suffice_isa() == before


def test_a_library_of_other_sources_is_told(fresh, monkeypatch):
    monkeypatch.setitem(library.FUNCTIONS, "suffice_dream", (None,))
    if library._path() is None:
        pytest.skip(library.why_not())
    assert library.why_not().endswith("was built from other sources and has no suffice_dream")
    with pytest.raises(ConfigError, match="has no suffice_dream; install a C"):
        library.library()
