"""The colours are apart: for everyone, for the common colour blindnesses, and in grey."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from suffice.patterns import Pattern
from suffice.view.drawing import COLOURS, FREE, HIDDEN, PAGE, Part, cell_styles

TO_XYZ = torch.tensor(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = torch.tensor([0.95047, 1.0, 1.08883])
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
SEEN = {
    "by most": torch.eye(3),
    "protanopia": torch.tensor(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": torch.tensor(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": torch.tensor(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
APART = {"by most": 20, "protanopia": 12, "deuteranopia": 11, "tritanopia": 11}
PALETTE = sorted({*COLOURS.values(), *FREE})


def lab(colour, seen):
    """CIELAB of "#rrggbb"."""
    coded = torch.tensor([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = torch.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ (seen @ linear).clamp(0, 1) / WHITE
    f = torch.where(xyz > 216 / 24389, xyz ** (1 / 3), (24389 / 27 * xyz + 16) / 116)
    return torch.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("name", SEEN)
def test_colours_are_apart_for_every_eye(name):
    seen = {colour: lab(colour, SEEN[name]) for colour in (*PALETTE, HIDDEN)}
    nearest = min((float((seen[a] - seen[b]).norm()), a, b) for a, b in combinations(seen, 2))
    assert nearest[0] > APART[name], nearest


def test_colours_are_apart_in_grey():
    light = sorted(float(lab(colour, torch.eye(3))[0]) for colour in (*PALETTE, HIDDEN))
    assert min(b - a for a, b in zip(light, light[1:], strict=False)) > 5
    assert float(lab(HIDDEN, torch.eye(3))[0]) < float(lab(PAGE, torch.eye(3))[0])


def test_every_built_in_pattern_has_a_colour():
    built_in = {
        name
        for name, value in Pattern.table.items()
        if value.__module__.startswith("suffice.") and name not in ("And", "Or", "PerHead")
    }
    assert built_in == set(COLOURS)


def parts(*kinds):
    return [Part(kind, f"{kind} {number}") for number, kind in enumerate(kinds)]


def test_kinds_look_the_same_in_every_drawing():
    one, two = (
        cell_styles(parts("Window", "Global")),
        cell_styles(parts("Random", "Global", "Window")),
    )
    assert [style.colour for style in one] == [COLOURS["Window"], COLOURS["Global"]]
    assert two[2] == one[0]
    assert two[1].colour == one[1].colour


def test_styles_differ_as_long_as_there_are_enough():
    several = cell_styles(parts("Window", "Window", "Strided", "Fixed", "Mine", "Window", "Wide"))
    for field in ("colour", "shade", "letter"):
        assert len({getattr(style, field) for style in several}) == 7
    assert [style.letter for style in several] == ["W", "i", "S", "F", "M", "n", "d"]
    many = cell_styles(parts(*["Mine"] * 30))
    assert len({style.colour for style in many}) == len(PALETTE)
    assert all(style.letter.isascii() for style in cell_styles(parts("Ärmel", "ß")))
