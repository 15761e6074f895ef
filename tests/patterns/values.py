"""Patterns to hold promises against: every sample, and compositions that meet every rule."""

from __future__ import annotations

from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Neighbourhood,
    Pattern,
    PerHead,
    Random,
    ShiftedWindows,
    Strided,
    Window,
)

SAMPLES = tuple(
    sample
    for value in list(Pattern.table.values())
    if value.__module__.startswith("suffice.")
    for sample in value.samples()
)

SINGLE = (
    Window(1),
    Window(5),
    Window(40),
    Dilated(1, 3),
    Dilated(4, 1),
    Dilated(3, 5),
    Dilated(2, 50),
    Strided(1),
    Strided(3),
    Strided(16),
    Strided(50),
    Fixed(1),
    Fixed(5, 2),
    Fixed(16, 16),
    Fixed(20, 3),
    Fixed(100, 7),
    Global(3),
    Global(20),
    Random(1),
    Random(9),
    Random(5, length=67, seed=-3),
    Random(11, length=9, seed=1 << 70),
    Block(3),
    Block(16, Causal()),
    Block(100),
    Neighbourhood(12, 15, 5),
    Neighbourhood(45, 4, 2, first=3),
    ShiftedWindows(20, 9, 4, shift=1, first=1),
    ShiftedWindows(12, 15, 15),
)

COMPOSED = (
    (Window(5) | Global(2)) & Causal(),
    Window(9) | Strided(8),
    (Window(8) | Strided(8)) & Causal(),
    (Block(8) | Fixed(8, 2)) & Causal(),
    Strided(4) & Strided(6),
    Strided(4) | Strided(6) | Dilated(2, 5),
    Strided(3) & (Window(10) | Global(4)),
    (Strided(2) | Window(3)) & (Strided(3) | Global(5)),
    Block(8, Window(2) | Random(2, length=9) | Global(1)),
    Block(4, Window(2) | Random(1) | Global(1)) & Causal(),
    Random(3) | Strided(7),
    PerHead((Window(3), Strided(4), Full())),
    PerHead((Window(3), Strided(4))) & Causal(),
    PerHead((Window(3), Strided(4))) | Strided(9),
    Strided(2) & PerHead((Window(8), Global(2))),
    PerHead((Window(3), Full())) & PerHead((Strided(2), Causal())) | Strided(5),
    Neighbourhood(20, 9, 3, first=1) | Global(1),
    PerHead((ShiftedWindows(13, 14, 5, shift=2), Window(3))),
    Block(5, PerHead((Window(1), Strided(2)))),
)

ALL = SAMPLES + SINGLE + COMPOSED
