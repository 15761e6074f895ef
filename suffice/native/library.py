"""The compiled kernels, found and loaded when they are first asked for."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import lru_cache
from pathlib import Path

from suffice.errors import ConfigError
from suffice.native import structures as of

NAME = "suffice.native._kernels"
OTHER = "SUFFICE_KERNELS"  # for tests: the file of another build, such as a sanitized one
INT, POINTER, TEXT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
# results and arguments, as suffice/csrc/interface.h has them
FUNCTIONS = {
    "suffice_isa": (TEXT,),
    "suffice_isas": (TEXT,),
    "suffice_use_isa": (ctypes.c_int, TEXT),
    "suffice_sizes": (None, POINTER),
    "suffice_multiply": (None, ctypes.POINTER(of.Matrix), POINTER, INT, POINTER, INT),
    "suffice_look": (ctypes.c_int, ctypes.POINTER(of.Look), ctypes.POINTER(of.Held), INT, INT),
    "suffice_step_room": (INT, ctypes.POINTER(of.Model), INT, INT, INT),
    "suffice_step": (
        None,
        ctypes.POINTER(of.Model),
        ctypes.POINTER(of.Held),
        ctypes.POINTER(of.Mix),
        POINTER,
        POINTER,
        POINTER,
        INT,
        INT,
        POINTER,
        POINTER,
        INT,
    ),
    "suffice_attend": (ctypes.c_int, *[POINTER] * 6, INT),
    "suffice_attend_back": (None, *[POINTER] * 10, INT),
    "suffice_linear": (None, *[POINTER] * 6, INT),
    "suffice_linear_back": (None, *[POINTER] * 10, INT),
}


def _path() -> Path | None:
    """Return where the library lies: as told, beside this file, or where it was installed."""
    told = os.environ.get(OTHER)
    if told:
        return Path(told)
    beside = Path(__file__).with_name("_kernels.so")
    if beside.exists():
        return beside
    found = importlib.util.find_spec(NAME)
    return None if found is None or found.origin is None else Path(found.origin)


@lru_cache(maxsize=1)
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and why there is none."""
    path = _path()
    if path is None:
        return None, "not built, for want of a C++ compiler or as asked"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path.name} cannot be loaded: {error}"
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            return None, f"{path.name} was built from other sources and has no {name}"
        function.restype, function.argtypes = result, arguments
    sizes = (INT * len(of.STRUCTURES))()
    library.suffice_sizes(sizes)
    if tuple(sizes) != tuple(map(ctypes.sizeof, of.STRUCTURES)):
        return None, f"{path.name} was built from other sources, whose structures differ"
    return library, ""


def available() -> bool:
    """Return whether native kernels can run here."""
    return _loaded()[0] is not None


def why_not() -> str:
    """Return why there are none; "" if there are."""
    return _loaded()[1]


def library() -> ctypes.CDLL:
    """Return the library.

    Raises:
        ConfigError: if there is none, saying why.
    """
    found, reason = _loaded()
    if found is None:
        raise ConfigError(
            f"no native kernels here: {reason}; install a C++ compiler and reinstall suffice, or "
            "go without them."
        )
    return found


def instructions() -> str:
    """Return which instructions the kernels use: "avx512", "avx2" or "portable".

    Raises:
        ConfigError: if there are no kernels.
    """
    return library().suffice_isa().decode()
