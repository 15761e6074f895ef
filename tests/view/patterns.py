"""Patterns of every kind, alone and composed."""

from __future__ import annotations

from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    PerHead,
    Random,
    Strided,
    Window,
)

COMPOSED = (
    Full(),
    Causal(),
    Window(3),
    Window(3) & Causal(),
    Dilated(3, 2) & Causal(),
    Window(4) | Global(2),
    (Window(4) | Global(2) | Random(2)) & Causal(),
    Block(4) & Causal(),
    Block(8, Window(2) | Random(1, length=8) | Global(1)),
    Random(2, length=33, seed=3) | Window(1),
    PerHead((Window(8) & Causal(), Strided(8) & Causal())),
    PerHead((Block(8), Fixed(8, 2), Full())) & Causal(),
    Global(1) & Causal() | Strided(5) & Window(11) & Causal(),
)
