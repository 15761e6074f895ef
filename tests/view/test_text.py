from __future__ import annotations

import pytest
import torch

from suffice.patterns import Causal, Full, Global, PerHead, Strided, Window
from suffice.view import draw, lines, text
from suffice.view.drawing import cell_styles
from tests.view.patterns import COMPOSED

HEADS = PerHead((Window(3) & Causal(), Strided(3) & Causal(), Window(3) & Causal()))


def grids(drawn, drawing, *, unicode):
    """Read the cells of the panels from the lines of a drawing, one panel below the other."""
    signs = {"·": 0, ".": 0}
    for number, style in enumerate(cell_styles(drawing.parts), start=1):
        signs[style.shade if unicode else style.letter] = number
    found = []
    for line in drawn:
        if not line or line.startswith("head"):
            continue
        cells = [signs.get(sign, -1) for sign in line[::2]]
        if -1 in cells:
            break
        found.append(cells)
    return torch.tensor(found)


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_every_cell_is_drawn_where_there_is_room(pattern, unicode):
    drawing = draw(pattern, 17)
    drawn = text(pattern, 17, width=2 * 17, unicode=unicode).splitlines()
    wanted = torch.cat([panel.cells for panel in drawing.panels])
    assert torch.equal(grids(drawn, drawing, unicode=unicode), wanted)


@pytest.mark.parametrize("width", [20, 60, 80, 120])
@pytest.mark.parametrize("length", [1, 5, 64, 100, 500])
@pytest.mark.parametrize("pattern", [COMPOSED[6], HEADS], ids=repr)
def test_a_drawing_keeps_to_the_room_it_has(pattern, length, width):
    drawn = text(pattern, length, width=width).splitlines()
    legend = draw(pattern, length).legend
    assert max(map(len, drawn)) <= max(width, 3 + max(len(name) for _, name in legend))
    panels = [line for line in drawn if line.startswith(("█", "▒", "░", "·")) and ":" not in line]
    stacked = sum(line.startswith("head") and ":" not in line for line in drawn) or 1
    assert len(panels) <= 32 * stacked


def test_a_cell_of_many_pairs_shows_the_part_with_most():
    pattern = Global(1) | Window(3)
    drawing = draw(pattern, 21)
    drawn = text(pattern, 21, width=12, unicode=False).splitlines()
    cells = drawing.panels[0].cells
    shown = grids(drawn, drawing, unicode=False)
    assert shown.shape == (6, 6)
    for row in range(6):
        for column in range(6):
            block = cells[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten().tolist()
            most = max((1, 2), key=block.count)
            assert shown[row, column] == (most if block.count(most) else 0)
    assert "a cell stands for 4 x 4 pairs and shows the part that allows most" in " ".join(drawn)


def test_one_pair_in_a_cell_is_not_lost():
    drawn = text(Strided(64), 64, width=16, unicode=False).splitlines()
    assert drawn[:2] == ["S . . . . . . .", ". S . . . . . ."]


def test_a_cell_is_as_many_pairs_as_must_be():
    assert len(text(Full(), 40, width=80, rows=40).splitlines()[0]) == 80
    assert len(text(Full(), 40, width=79, rows=40).splitlines()[0]) == 40
    assert len(text(Full(), 40, width=80, rows=39).splitlines()[0]) == 40
    assert len(text(Full(), 40, width=80, rows=20).splitlines()[0]) == 40
    assert len(text(Full(), 40, width=80, rows=19).splitlines()[0]) == 20


def test_heads_stand_side_by_side_where_they_fit():
    wide = text(HEADS, 20, width=83, unicode=False).splitlines()
    assert wide[0] == "heads 1, 3".ljust(43) + "head 2"
    assert wide[1].split() == ["W", *["."] * 19, "S", *["."] * 19]
    narrow = text(HEADS, 20, width=40, unicode=False).splitlines()
    assert [line for line in narrow if line.startswith("head")] == [
        "heads 1, 3",
        "head 2",
        "heads 1, 3: 57 of 400 pairs visible",
        "head 2: 77 of 400 pairs visible (19.2%),",
    ]


def test_many_heads_are_drawn_in_rows():
    heads = PerHead(tuple(Window(size) for size in range(1, 8)))
    drawn = text(heads, 12, width=80).splitlines()
    assert [line.split("   ")[0].strip() for line in drawn if line.startswith("head ")][:3] == [
        "head 1",
        "head 4",
        "head 7",
    ]


def test_queries_stand_last_among_the_keys():
    drawn = text(Causal(), 2, 4, unicode=False).splitlines()
    assert drawn[:2] == ["C C C .", "C C C C"]


def test_the_legend_and_the_counts_stand_below():
    told = text((Window(4) | Global(2)) & Causal(), 20, unicode=False).splitlines()
    assert told[20:] == [
        "",
        "G  Global(tokens=2): 39 pairs",
        "W  Window(size=4): 66 pairs",
        "Queries down, keys across.",
        "105 of 400 pairs visible (26.2%), 400 computed in blocks of 64.",
    ]


def test_letters_are_ascii():
    for pattern in COMPOSED:
        assert text(pattern, 33, unicode=False).isascii()
        assert not text(pattern, 33).isascii()


def test_runs_say_which_part_they_show():
    drawing = draw(Causal() & Window(2), 3)
    assert lines(drawing)[1] == [("████", 1), ("· ", 0), ("   ", 0)]
