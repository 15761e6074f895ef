"""The compiled kernels, loaded on first use, and the structures they read."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

from suffice.errors import ConfigError
from suffice.utils.torch_compat import constant_when_traced

INT, INT32, FLOAT = ctypes.c_int64, ctypes.c_int32, ctypes.c_float
POINTER, TEXT = ctypes.c_void_p, ctypes.c_char_p

ABSENT, F32, F16, BF16, INT8, INT4 = -1, 0, 1, 2, 3, 4
GELU, RELU, SWIGLU, GELU_TANH, TANH, GEGLU, GEGLU_TANH = range(7)
STAY, HALVES, PAIRS = 0, 1, 2
HEAD_RMS, HEAD_LAYER, PROJECTION_RMS = 0, 1, 2
PRE, OUT, PARALLEL = 0, 1, 2
DECAYS = ("none", "head", "token", "feature")  # of a state, in the order of enum Decay


def _fields(ctype: type, names: str) -> list[tuple[str, type]]:
    return [(name, ctype) for name in names.split()]


class Matrix(ctypes.Structure):
    """A linear map."""

    _fields_ = (
        *_fields(INT, "kind rows columns group"),
        *_fields(POINTER, "data scales bias"),
    )


class Norm(ctypes.Structure):
    """Weight and bias of a norm."""

    _fields_ = _fields(POINTER, "weight bias")


class Layer(ctypes.Structure):
    """Constants of a decoder layer."""

    _fields_ = (
        *_fields(Norm, "attention_norm mlp_norm attention_out_norm mlp_out_norm"),
        *_fields(Matrix, "q k v o gate up down"),
        *_fields(INT, "heads kv_heads head_dim value_dim maps"),
        ("scale", FLOAT),
        ("turn", INT32),
        ("turning", INT),
        *_fields(POINTER, "cosines sines slopes q_gains k_gains logits difference_gains"),
        *_fields(FLOAT, "gain_eps difference_eps lambda cap"),
        *_fields(INT, "head_norm reads_another before"),
    )


class Span(ctypes.Structure):
    """Positions of one kind that follow each other in memory."""

    _fields_ = (
        *_fields(INT, "kind value_kind"),
        *_fields(POINTER, "keys values key_ranges value_ranges"),
        *_fields(INT, "key_row key_head value_row value_head"),
        *_fields(INT, "key_range_row key_range_head value_range_row value_range_head"),
        *_fields(INT, "key_step value_step first end shift"),
    )


class KVCache(ctypes.Structure):
    """The KV cache of a layer."""

    _fields_ = (*_fields(Span, "sinks coded near"), *_fields(INT, "block group"))


class Mixing(ctypes.Structure):
    """The mixing of a layer's values, for one call."""

    _fields_ = (
        *_fields(POINTER, "weights bias"),
        *_fields(INT, "map bias_map"),
        *_fields(POINTER, "first count offset raw"),
        *_fields(INT, "row head at"),
    )


class DecodeAttention(ctypes.Structure):
    """Attention of the latest positions of each row to the cache."""

    _fields_ = (
        *_fields(POINTER, "q out"),
        *_fields(INT, "heads kv_heads head_dim value_dim queries"),
        *_fields(FLOAT, "scale cap"),
        *_fields(INT, "before after"),
        *_fields(POINTER, "slopes places padding allowed"),
        *_fields(INT, "allowed_row allowed_head allowed_query"),
        *_fields(POINTER, "q_at k_at"),
        ("keys", INT),
        ("logits", POINTER),
    )


class Model(ctypes.Structure):
    """A stack of layers between an embedding and a head."""

    _fields_ = (
        *_fields(INT, "depth d_model width vocabulary root_mean_square activation residual"),
        *_fields(FLOAT, "eps logit_cap"),
        ("layers", ctypes.POINTER(Layer)),
        *_fields(Matrix, "embedding head"),
        ("norm", Norm),
        ("positions", POINTER),
    )


class Strides(ctypes.Structure):
    """Strides of a tensor [B, heads, positions, width], in elements."""

    _fields_ = _fields(INT, "batch head row")


class SequenceAttention(ctypes.Structure):
    """Attention of whole sequences."""

    _fields_ = (
        *_fields(INT, "batch heads kv_heads queries keys width value_width"),
        ("scale", FLOAT),
        ("kind", INT32),
        *_fields(Strides, "q k v out out_grad grad_q grad_k grad_v"),
        *_fields(INT, "low high"),
        *_fields(POINTER, "starts listed seen_by list_of valid"),
        ("cap", FLOAT),
        ("unused", INT32),
    )


class Linear(ctypes.Structure):
    """Sums of features along the sequence."""

    _fields_ = (
        *_fields(INT, "batch heads kv_heads queries keys width value_width features causal"),
        ("omega", POINTER),
        ("scale", FLOAT),
        ("unused", INT32),
        *_fields(POINTER, "valid documents"),
        *_fields(Strides, "q k v out out_grad grad_q grad_k grad_v"),
    )


class Recurrence(ctypes.Structure):
    """Sums that decay or are corrected."""

    _fields_ = (
        *_fields(INT, "batch heads length width value_width decays"),
        ("documents", POINTER),
        *_fields(
            Strides, "q k v decay beta out out_grad grad_q grad_k grad_v grad_decay grad_beta"
        ),
    )


class RecurrenceGradients(ctypes.Structure):
    """Gradients that come in, and those that are wanted."""

    _fields_ = _fields(POINTER, "out end q k v decay beta start")


class GatedNorm(ctypes.Structure):
    """A root-mean-square norm, and a gate."""

    _fields_ = (
        *_fields(INT, "rows groups width gate x_row gate_row grad_row"),
        *_fields(FLOAT, "eps offset"),
    )


class Rotation(ctypes.Structure):
    """A rotary embedding."""

    _fields_ = (*_fields(INT, "batch heads length width turned table_batch back"), ("x", Strides))


class Convolution(ctypes.Structure):
    """A causal convolution of each channel."""

    _fields_ = (
        *_fields(INT, "batch length channels taps silu x_batch x_row grad_batch grad_row"),
        ("documents", POINTER),
    )


class TokenStep(ctypes.Structure):
    """One token through a recurrence."""

    _fields_ = (
        *_fields(INT, "batch heads key_heads width value_width q_batch k_batch v_batch unit"),
        *_fields(FLOAT, "eps scale"),
    )


class RecurrentToken(ctypes.Structure):
    """A recurrent layer, for single tokens."""

    _fields_ = (
        *_fields(INT, "heads groups width value_width taps decay corrects"),
        *_fields(FLOAT, "scale eps"),
    )


class RecurrentTensors(ctypes.Structure):
    """What one token of a recurrent layer reads and writes."""

    _fields_ = _fields(POINTER, "q k v decay beta weights rates biases valid history sums out")


STRUCTURES = (
    Matrix, Norm, Layer, Span, KVCache, Mixing, DecodeAttention, Model, Strides,
    SequenceAttention, Linear, Recurrence, RecurrenceGradients,
    GatedNorm, Rotation, Convolution, TokenStep,
    RecurrentToken, RecurrentTensors,
)  # fmt: skip
NAME = "suffice.ops.native._kernels"
# the library that the build puts next to this module
FILE = "_kernels.dll" if sys.platform == "win32" else "_kernels.so"
OVERRIDE = "SUFFICE_KERNELS"  # for tests: the file of another build, such as a sanitized one
ISA = "SUFFICE_ISA"  # one of the processor's instruction sets instead of the best
# results and arguments, as suffice/csrc/interface.h has them
FUNCTIONS = {
    "suffice_isa": (TEXT,),
    "suffice_isas": (TEXT,),
    "suffice_use_isa": (ctypes.c_int, TEXT),
    "suffice_sizes": (None, POINTER),
    "suffice_multiply": (None, ctypes.POINTER(Matrix), POINTER, INT, POINTER, INT),
    # structures, or their bytes
    "suffice_decode_attention": (
        ctypes.c_int,
        POINTER,
        POINTER,
        INT,
        INT,
    ),
    "suffice_step_room": (INT, ctypes.POINTER(Model), INT, INT, INT),
    "suffice_step": (
        None,
        *map(ctypes.POINTER, (Model, KVCache, Mixing)),
        *[POINTER] * 3,
        *[INT] * 3,
        *[POINTER] * 3,
        INT,
    ),  # fmt: skip
    "suffice_attend": (ctypes.c_int, *[POINTER] * 6, INT),
    "suffice_attend_back": (None, *[POINTER] * 10, INT),
    "suffice_linear": (None, *[POINTER] * 6, INT),
    "suffice_linear_back": (None, *[POINTER] * 10, INT),
    "suffice_recur": (None, *[POINTER] * 9, INT),
    "suffice_recur_back": (None, *[POINTER] * 8, INT),
    "suffice_norm": (None, *[POINTER] * 5, INT),
    "suffice_norm_back": (None, *[POINTER] * 8, INT),
    "suffice_glu": (None, INT, INT, *[POINTER] * 3, INT),
    "suffice_glu_back": (None, INT, INT, *[POINTER] * 5, INT),
    "suffice_rotate": (None, *[POINTER] * 5, INT),
    "suffice_convolve": (None, *[POINTER] * 5, INT),
    "suffice_convolve_back": (None, *[POINTER] * 8, INT),
    "suffice_convolve_step": (None, *[POINTER] * 5, INT, POINTER, INT),
    "suffice_mamba2_step": (None, *[POINTER] * 9, INT),
    "suffice_delta_step": (None, *[POINTER] * 8, INT),
    "suffice_recurrent_token": (None, POINTER, POINTER, INT, INT),
}


def _path() -> Path | None:
    if override := os.environ.get(OVERRIDE):
        return Path(override)
    neighbour = Path(__file__).with_name(FILE)
    if neighbour.exists():
        return neighbour
    spec = importlib.util.find_spec(NAME)
    return None if spec is None or spec.origin is None else Path(spec.origin)


@lru_cache(maxsize=1)
def _loaded() -> tuple[ctypes.CDLL | None, str]:
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
    isa = os.environ.get(ISA)
    if isa and library.suffice_use_isa(isa.encode()):
        raise ConfigError(
            f"{ISA}={isa}: this processor's kernels are {library.suffice_isas().decode()}; name "
            "one of these or leave the variable unset."
        )
    return library, ""


@constant_when_traced
def available() -> bool:
    """Return whether native kernels can run here."""
    return _loaded()[0] is not None


@constant_when_traced
def why_not() -> str:
    """Return why native kernels cannot run here, or ""."""
    return _loaded()[1]


def library() -> ctypes.CDLL:
    """Return the library; raise ConfigError if there is none."""
    kernels, reason = _loaded()
    if kernels is None:
        raise ConfigError(
            f"no native kernels here: {reason}; install a C++ compiler and reinstall suffice, or "
            "go without them."
        )
    return kernels


@constant_when_traced
def instructions() -> str:
    """Return the instruction set that the kernels use, such as "avx2"."""
    return library().suffice_isa().decode()
