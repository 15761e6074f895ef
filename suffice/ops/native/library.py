"""The compiled kernels, found and loaded when they are first asked for."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import lru_cache
from pathlib import Path

from suffice.errors import ConfigError

INT, INT32, FLOAT = ctypes.c_int64, ctypes.c_int32, ctypes.c_float
POINTER, TEXT = ctypes.c_void_p, ctypes.c_char_p

ABSENT, F32, F16, BF16, INT8, INT4 = -1, 0, 1, 2, 3, 4
GELU, RELU, SWIGLU = 0, 1, 2
STAY, HALVES, PAIRS = 0, 1, 2


class Matrix(ctypes.Structure):
    """A linear map."""

    _fields_ = (
        ("kind", INT),
        ("rows", INT),
        ("columns", INT),
        ("group", INT),
        ("data", POINTER),
        ("scales", POINTER),
        ("bias", POINTER),
    )


class Norm(ctypes.Structure):
    """Weight and bias of a norm."""

    _fields_ = (("weight", POINTER), ("bias", POINTER))


class Layer(ctypes.Structure):
    """Constants of a decoder layer."""

    _fields_ = (
        ("attention_norm", Norm),
        ("mlp_norm", Norm),
        *((name, Matrix) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        ("heads", INT),
        ("kv_heads", INT),
        ("head_dim", INT),
        ("scale", FLOAT),
        ("turn", INT32),
        ("turning", INT),
        ("cosines", POINTER),
        ("sines", POINTER),
        ("slopes", POINTER),
        ("q_gains", POINTER),
        ("k_gains", POINTER),
        ("gain_eps", FLOAT),
        ("unused", INT32),
    )


class Span(ctypes.Structure):
    """Positions of one kind that follow each other in memory."""

    _fields_ = (
        ("kind", INT),
        *((name, POINTER) for name in ("keys", "values", "key_ranges", "value_ranges")),
        *((name, INT) for name in ("key_row", "key_head", "value_row", "value_head")),
        *((name, INT) for name in ("key_range_row", "key_range_head")),
        *((name, INT) for name in ("value_range_row", "value_range_head")),
        *((name, INT) for name in ("key_step", "value_step")),
        *((name, INT) for name in ("first", "end", "shift")),
    )


class Held(ctypes.Structure):
    """The KV cache of a layer."""

    _fields_ = (
        *((name, Span) for name in ("sinks", "coded", "near")),
        *((name, INT) for name in ("block", "group")),
    )


class Mix(ctypes.Structure):
    """The mixing of a layer's values, for one call."""

    _fields_ = (
        ("weights", POINTER),
        ("bias", POINTER),
        *((name, INT) for name in ("map", "bias_map")),
        *((name, POINTER) for name in ("first", "count", "offset", "raw")),
        *((name, INT) for name in ("row", "head", "at")),
    )


class Look(ctypes.Structure):
    """Attention of the latest positions of each row to the cache."""

    _fields_ = (
        ("q", POINTER),
        ("out", POINTER),
        *((name, INT) for name in ("heads", "kv_heads", "head_dim", "queries")),
        ("scale", FLOAT),
        ("unused", INT32),
        *((name, INT) for name in ("before", "after")),
        *((name, POINTER) for name in ("slopes", "places", "padding", "allowed")),
        *((name, INT) for name in ("allowed_row", "allowed_head", "allowed_query")),
        *((name, POINTER) for name in ("q_at", "k_at")),
        ("keys", INT),
    )


class Model(ctypes.Structure):
    """A stack of layers between an embedding and a head."""

    _fields_ = (
        *((name, INT) for name in ("depth", "d_model", "width", "vocabulary")),
        ("root_mean_square", INT),
        ("activation", INT),
        ("eps", FLOAT),
        ("unused", INT32),
        ("layers", ctypes.POINTER(Layer)),
        ("embedding", Matrix),
        ("head", Matrix),
        ("norm", Norm),
        ("positions", POINTER),
    )


class Strides(ctypes.Structure):
    """Where something [B, heads, positions, width] lies, in elements."""

    _fields_ = (("batch", INT), ("head", INT), ("row", INT))


class Whole(ctypes.Structure):
    """Attention of whole sequences."""

    _fields_ = (
        *((name, INT) for name in ("batch", "heads", "kv_heads", "queries", "keys")),
        *((name, INT) for name in ("width", "value_width")),
        ("scale", FLOAT),
        ("unused", INT32),
        *((name, Strides) for name in ("q", "k", "v", "out", "slope", "of_q", "of_k", "of_v")),
        ("low", INT),
        ("high", INT),
        *((name, POINTER) for name in ("starts", "listed", "seen_by", "list_of")),
    )


class Linear(ctypes.Structure):
    """Sums of features along the sequence."""

    _fields_ = (
        *((name, INT) for name in ("batch", "heads", "kv_heads", "queries", "keys")),
        *((name, INT) for name in ("width", "value_width", "features", "causal")),
        ("omega", POINTER),
        ("scale", FLOAT),
        ("unused", INT32),
        *((name, POINTER) for name in ("seen", "documents")),
        *((name, Strides) for name in ("q", "k", "v", "out", "slope", "of_q", "of_k", "of_v")),
    )


STRUCTURES = (Matrix, Norm, Layer, Span, Held, Mix, Look, Model, Strides, Whole, Linear)


NAME = "suffice.ops.native._kernels"
OTHER = "SUFFICE_KERNELS"  # for tests: the file of another build, such as a sanitized one
# results and arguments, as suffice/csrc/interface.h has them
FUNCTIONS = {
    "suffice_isa": (TEXT,),
    "suffice_isas": (TEXT,),
    "suffice_use_isa": (ctypes.c_int, TEXT),
    "suffice_sizes": (None, POINTER),
    "suffice_multiply": (None, ctypes.POINTER(Matrix), POINTER, INT, POINTER, INT),
    "suffice_look": (ctypes.c_int, ctypes.POINTER(Look), ctypes.POINTER(Held), INT, INT),
    "suffice_step_room": (INT, ctypes.POINTER(Model), INT, INT, INT),
    "suffice_step": (
        None,
        ctypes.POINTER(Model),
        ctypes.POINTER(Held),
        ctypes.POINTER(Mix),
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
    """Return where the library lies: as OTHER says, beside this file, or where it was installed."""
    override = os.environ.get(OTHER)
    if override:
        return Path(override)
    beside = Path(__file__).with_name("_kernels.so")
    if beside.exists():
        return beside
    spec = importlib.util.find_spec(NAME)
    return None if spec is None or spec.origin is None else Path(spec.origin)


@lru_cache(maxsize=1)
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None and why there is none."""
    path = _path()
    if path is None:
        return None, "not built: no C++ compiler was found, or they were disabled at install"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path.name} cannot be loaded: {error}"
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            return None, f"{path.name} was built from other sources and has no {name}"
        function.restype, function.argtypes = result, arguments
    sizes = (INT * len(STRUCTURES))()
    library.suffice_sizes(sizes)
    if tuple(sizes) != tuple(map(ctypes.sizeof, STRUCTURES)):
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
    kernels, reason = _loaded()
    if kernels is None:
        raise ConfigError(
            f"no native kernels here: {reason}; install a C++ compiler and reinstall suffice, or "
            "go without them."
        )
    return kernels


def instructions() -> str:
    """Return which instructions the kernels use: "avx512", "avx2" or "portable".

    Raises:
        ConfigError: if there are no kernels.
    """
    return library().suffice_isa().decode()
