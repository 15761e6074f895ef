"""Peers that are packages: imported when a case asks for them, told when they are absent."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from types import ModuleType

from benchmarks.contest import Absent


def package(name: str, module: str) -> ModuleType:
    """Import a module of a package; what it prints and warns of is left out.

    Args:
        name: of the package, as pip knows it.
        module: what to import.

    Raises:
        Absent: if it cannot be imported; says how to install it.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise Absent(f"{name} ({error}); pip install --group bench") from error
