"""The structures of suffice/csrc/interface.h, field by field."""

from __future__ import annotations

import ctypes

INT, FLOAT, HALF_INT, POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_int32, ctypes.c_void_p

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
        ("turn", HALF_INT),
        ("turning", INT),
        ("cosines", POINTER),
        ("sines", POINTER),
        ("slopes", POINTER),
        ("q_gains", POINTER),
        ("k_gains", POINTER),
        ("gain_eps", FLOAT),
        ("unused", HALF_INT),
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
    """What a layer holds of the past."""

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
    """Attention of the latest positions of each row to what is held."""

    _fields_ = (
        ("q", POINTER),
        ("out", POINTER),
        *((name, INT) for name in ("heads", "kv_heads", "head_dim", "queries")),
        ("scale", FLOAT),
        ("unused", HALF_INT),
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
        ("unused", HALF_INT),
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
        ("unused", HALF_INT),
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
        ("unused", HALF_INT),
        *((name, POINTER) for name in ("seen", "documents")),
        *((name, Strides) for name in ("q", "k", "v", "out", "slope", "of_q", "of_k", "of_v")),
    )


STRUCTURES = (Matrix, Norm, Layer, Span, Held, Mix, Look, Model, Strides, Whole, Linear)
