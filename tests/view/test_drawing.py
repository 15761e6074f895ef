from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from suffice.errors import ConfigError
from suffice.patterns import (
    And,
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Or,
    Pattern,
    PerHead,
    Random,
    Strided,
    Window,
)
from suffice.spec.cost import computed_pairs
from suffice.view import MAX_POSITIONS, draw
from tests.view.patterns import COMPOSED


def cells_of(pattern, queries, keys, heads=1):
    """What a drawing shows of each head: [H, T, S]."""
    drawing = draw(pattern, queries, keys, heads)
    shown = torch.zeros(heads, queries, keys, dtype=torch.int64)
    for panel in drawing.panels:
        for head in panel.heads:
            shown[head - 1] = panel.cells
    return shown


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 7), (5, 5), (16, 16), (9, 33), (64, 64)])
@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_coloured_is_what_is_visible(pattern, queries, keys):
    if pattern.max_length is not None:
        keys = queries = min(queries, pattern.max_length)
    heads = pattern.heads or 2
    mask = pattern.mask(queries, keys).expand(heads, queries, keys)
    assert torch.equal(cells_of(pattern, queries, keys, heads) > 0, mask)


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_counts_are_those_of_the_pattern(pattern):
    length = min(200, pattern.max_length or 200)
    drawing = draw(pattern, length)
    for panel in drawing.panels:
        own = pattern.of_heads(pattern.heads or 1)[panel.heads[0] - 1]
        assert panel.visible == own.pairs(length, length)
        assert panel.share == panel.visible / length**2
        assert panel.computed == computed_pairs(own, length, length)


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
def test_every_visible_pair_is_in_the_legend_once(pattern):
    length = min(48, pattern.max_length or 48)
    drawing = draw(pattern, length)
    told = [int(name.rpartition(": ")[2].split()[0].replace(",", "")) for _, name in drawing.legend]
    assert sum(told) == sum(panel.visible for panel in drawing.panels)
    assert [number for number, _ in drawing.legend] == list(range(1, len(drawing.parts) + 1))


def kinds(pattern, length=12, heads=None):
    return [part.kind for part in draw(pattern, length, num_heads=heads).parts]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (Window(3) & Causal(), ["Window"]),
        (Causal() & Window(100), ["Window"]),
        (Full() & Causal(), ["Causal"]),
        (Causal() & Full() & Dilated(2, 3), ["Dilated"]),
        (Window(9) & Strided(4), ["Strided"]),
        (Strided(4) & Window(2), ["Window"]),
        ((Window(3) | Global(1)) & Causal(), ["Global", "Window"]),
        (Window(3) & Causal() | Global(2) | Fixed(4), ["Global", "Window", "Fixed"]),
        (Block(4), ["Block"]),
        (Block(4, Window(1)) & Causal(), ["Block"]),
        (Block(4, Window(2) | Random(1, length=3) | Global(1)), ["Global", "Window", "Random"]),
        (PerHead((Window(2), Strided(3) & Causal())), ["Window", "Strided"]),
        (PerHead((Window(2), Full())) & Causal(), ["Window", "Causal"]),
        (Block(2, PerHead((Window(2), Full()))), ["Window", "Full"]),
    ],
    ids=repr,
)
def test_a_pair_is_named_by_its_part(pattern, wanted):
    assert kinds(pattern) == wanted


def test_the_first_part_that_allows_a_pair_colours_it():
    cells = draw(Window(2) | Block(2), 4).panels[0].cells
    assert cells.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    cells = draw(Block(2) | Window(2), 4).panels[0].cells
    assert cells.tolist() == [[1, 1, 0, 0], [1, 1, 2, 0], [0, 2, 1, 1], [0, 0, 1, 1]]


def test_global_rows_are_whole_and_random_pairs_show_where_nothing_else_does():
    drawn = draw(Random(3, length=12) | Window(2) | Global(2), 12)
    kinds = [part.kind for part in drawn.parts]
    assert kinds == ["Global", "Window", "Random"]
    cells = drawn.panels[0].cells
    assert (cells[:2] == 1).all()
    assert (cells[:, :2] == 1).all()
    others = (Window(2) | Global(2)).mask(12, 12)
    assert not (others & (cells == 3)).any()
    assert (cells > 0).equal((Random(3, length=12) | Window(2) | Global(2)).mask(12, 12))


def test_blocks_are_coloured_by_what_lies_over_them():
    drawing = draw(Block(2, Global(1) | Window(1)), 5)
    assert drawing.panels[0].cells.tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [1, 1, 2, 2, 0],
        [1, 1, 2, 2, 0],
        [1, 1, 0, 0, 2],
    ]
    assert drawing.legend == (
        (1, "Global(tokens=1) over blocks of 2: 16 pairs"),
        (2, "Window(size=1) over blocks of 2: 5 pairs"),
    )


def test_one_pair_is_one_pair():
    assert draw(Full(), 1).legend == ((1, "Full(): 1 pair"),)


def test_heads_that_see_the_same_share_a_panel():
    near, far = Window(2) & Causal(), Strided(3) & Causal()
    drawing = draw(PerHead((near, far, far, near, far, Window(2))), 9)
    assert [panel.heads for panel in drawing.panels] == [(1, 4), (2, 3, 5), (6,)]
    assert [panel.named(40) for panel in drawing.panels] == ["heads 1, 4", "heads 2-3, 5", "head 6"]
    assert drawing.panels[1].named(10) == "head 2 +2"
    assert [panel.heads for panel in draw(near, 9, num_heads=4).panels] == [(1, 2, 3, 4)]


def test_windows_that_only_look_alike_stay_apart():
    drawing = draw(PerHead((Window(9), Window(8))), 4)
    assert [panel.heads for panel in drawing.panels] == [(1,), (2,)]
    assert [part.name for part in drawing.parts] == ["Window(size=9)", "Window(size=8)"]


def test_a_pattern_of_a_user_is_named_by_its_class(own):
    drawing = draw(own(3) | Window(1), 5)
    assert [(part.kind, part.name) for part in drawing.parts] == [
        ("Parity", "Parity(of=3)"),
        ("Window", "Window(size=1)"),
    ]


@pytest.fixture
def own():
    @dataclass(frozen=True)
    class Parity(Pattern):
        of: int

        def allowed(self, q_positions, k_positions):
            return (q_positions + k_positions) % self.of == 1

    yield Parity
    del Pattern.table["Parity"]


def test_a_pattern_of_a_user_may_have_heads():
    @dataclass(frozen=True)
    class Turns(Pattern):
        heads = 3

        def allowed(self, q_positions, k_positions):
            turn = torch.arange(3)[:, None, None]
            return (q_positions + k_positions) % 3 == turn

    pattern = Turns() & Causal()
    try:
        assert torch.equal(cells_of(pattern, 7, 7, 3) > 0, pattern.mask(7, 7))
        assert kinds(pattern) == ["Turns"]
    finally:
        del Pattern.table["Turns"]


@pytest.mark.parametrize(
    ("queries", "keys"), [(0, 3), (3, 0), (MAX_POSITIONS + 1, 1), (1, MAX_POSITIONS + 1)]
)
def test_sizes_that_cannot_be_drawn_are_reported(queries, keys):
    told = f"{queries} queries and {keys} keys cannot be drawn; give 1 to {MAX_POSITIONS} of each."
    with pytest.raises(ConfigError, match=told):
        draw(Full(), queries, keys)


def test_a_pattern_for_fewer_positions_is_reported():
    with pytest.raises(ConfigError, match="length=9.*9 positions"):
        draw(Random(2, length=9), 10)
    assert draw(Random(2, length=9), 9).panels[0].visible == 18


def test_another_number_of_heads_is_reported():
    with pytest.raises(ConfigError, match="num_heads=0"):
        draw(Full(), 4, num_heads=0)
    with pytest.raises(ConfigError, match="2 heads"):
        draw(PerHead((Full(), Causal())), 4, num_heads=3)


def test_combinations_in_combinations_are_flat():
    pattern = Or((Or((Window(1), Strided(2))), And((And((Causal(), Full())), Window(3)))))
    drawing = draw(pattern, 8)
    assert drawing.expression == (
        "Window(size=1) | Strided(stride=2) | (Causal() & Full() & Window(size=3))"
    )
    assert [part.kind for part in drawing.parts] == ["Window", "Strided", "Window"]
