"""The library is found, loaded, and missed where it ought to be there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from suffice.errors import ConfigError
from suffice.ops.native import library
from suffice.ops.native import library as structures
from tests.ops.native.codings import needs_kernels


@pytest.fixture
def fresh():
    """Find the library again, before and after the test."""
    library._loaded.cache_clear()
    yield
    library._loaded.cache_clear()


ROOT = Path(__file__).resolve().parents[3]
WITHOUT = "SUFFICE_WITHOUT_KERNELS"  # what an installation reads, too


def buildable():
    """Return whether an installation here can build the kernels and was not told to do without."""
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    return bool(compiler and shutil.which("cmake") and os.environ.get(WITHOUT) != "1")


def test_kernels_that_can_be_built_are_here():
    """A broken build fails here: everywhere else it would be a test that is skipped."""
    if not buildable():
        pytest.skip("a C++ compiler or CMake is absent, or the kernels are not wanted")
    assert library.available(), f"{library.why_not()}; {WITHOUT}=1 asks for no kernels"
    assert library.why_not() == ""


@pytest.mark.parametrize("absent", ["compiler", "cmake", "wish", None])
def test_when_kernels_have_to_be_here(monkeypatch, absent):
    there = {"clang++": absent != "compiler", "cmake": absent != "cmake"}
    monkeypatch.setattr(shutil, "which", lambda name: name if there.get(name) else None)
    monkeypatch.setenv(WITHOUT, "1" if absent == "wish" else "")
    assert buildable() == (absent is None)


def test_an_installation_without_kernels_follows_its_option_or_a_failed_build():
    text = (ROOT / "pyproject.toml").read_text()
    for when in ("failed", f"env.{WITHOUT}"):
        assert f"[[tool.scikit-build.overrides]]\nif.{when} = true\nwheel.cmake = false\n" in text


@needs_kernels
def test_another_build_is_loaded_from_the_environment_variable(fresh, monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    shutil.copy(library._path(), other)
    monkeypatch.setenv("SUFFICE_KERNELS", str(other))
    assert library.library()._name == str(other)
    assert library.instructions() in library.library().suffice_isas().decode().split()


def test_a_library_that_cannot_be_loaded_is_reported(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    monkeypatch.setenv("SUFFICE_KERNELS", str(broken))
    assert not library.available()
    assert library.why_not().startswith("broken.so cannot be loaded: ")
    with pytest.raises(ConfigError, match="broken.so"):
        library.instructions()


def test_a_missing_library_is_reported(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("SUFFICE_KERNELS", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    assert (
        library.why_not()
        == "not built: no C++ compiler was found, or they were disabled at install"
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


@needs_kernels
def test_a_library_whose_structures_differ_is_reported(fresh, monkeypatch):
    monkeypatch.setattr(structures, "STRUCTURES", (structures.Layer, *structures.STRUCTURES[1:]))
    assert library.why_not().endswith("was built from other sources, whose structures differ")
    with pytest.raises(ConfigError, match="whose structures differ"):
        library.library()


def test_a_library_of_other_sources_is_reported(fresh, monkeypatch):
    monkeypatch.setitem(library.FUNCTIONS, "suffice_dream", (None,))
    if library._path() is None:
        pytest.skip(library.why_not())
    assert library.why_not().endswith("was built from other sources and has no suffice_dream")
    with pytest.raises(ConfigError, match="has no suffice_dream"):
        library.library()
