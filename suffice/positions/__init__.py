"""Position encodings: rotary (RoPE), ALiBi, or none."""

from suffice.positions.base import Alibi, NoPosition, Position
from suffice.positions.rope import (
    AxialRope,
    FastPairs,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    PairScaling,
    Rope,
    Scaling,
    YarnScaling,
)

__all__ = [
    "Alibi",
    "AxialRope",
    "FastPairs",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "NoPosition",
    "PairScaling",
    "Position",
    "Rope",
    "Scaling",
    "YarnScaling",
]
