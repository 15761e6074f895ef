"""Images as grids: neighbourhoods, shifted windows and axial rotary positions, cell by cell."""

from __future__ import annotations

import cmath

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.errors import ConfigError
from suffice.patterns import Full, Global, Neighbourhood, ShiftedWindows, Window
from suffice.positions import AxialRope
from suffice.testing import drawn, normal

GRIDS = [(1, 1, 1), (3, 3, 1), (3, 3, 3), (4, 6, 3), (6, 4, 2), (7, 5, 4), (9, 9, 5)]


def nearest(place, size, lines):
    """Return the `size` lines nearest to one: as many on either side, or those at the edge."""
    start = place - size // 2
    while start < 0:
        start += 1
    while start + size > lines:
        start -= 1
    return range(start, start + size)


@pytest.mark.parametrize(("rows", "columns", "size"), GRIDS)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_neighbourhoods(rows, columns, size, first):
    pattern, cells = Neighbourhood(rows, columns, size, first), rows * columns
    length = first + cells
    expected = torch.zeros(length, length, dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            for r in nearest(row, size, rows):
                for c in nearest(column, size, columns):
                    expected[first + row * columns + column, first + r * columns + c] = True
    assert pattern.mask(length, length).equal(expected)
    assert pattern.pairs(length, length) == cells * size * size


@pytest.mark.parametrize(("rows", "columns", "size"), [(4, 4, 2), (6, 9, 3), (8, 8, 4), (8, 4, 4)])
def test_shifted_windows_are_the_turned_and_masked_image(rows, columns, size):
    """As the paper computes them: turn the image, cut it, mask what was not adjacent."""
    for shift in range(size):
        number = torch.arange(rows * columns).view(rows, columns)
        region = torch.zeros(rows, columns, dtype=torch.long)
        label = 0
        cuts = (slice(0, -size), slice(-size, -shift or None), slice(-shift, None))
        for down in cuts[: 3 if shift else 2]:
            for right in cuts[: 3 if shift else 2]:
                region[down, right] = label
                label += 1
        turned = number.roll((-shift, -shift), (0, 1))
        expected = torch.zeros(rows * columns, rows * columns, dtype=torch.bool)
        for top in range(0, rows, size):
            for left in range(0, columns, size):
                window = slice(top, top + size), slice(left, left + size)
                members, kinds = turned[window].flatten(), region[window].flatten()
                alike = kinds[:, None] == kinds[None]
                expected[members[:, None], members[None]] = alike
        pattern = ShiftedWindows(rows, columns, size, shift)
        assert pattern.mask(rows * columns, rows * columns).equal(expected)


def test_windows_that_do_not_divide_the_grid_are_smaller_at_its_end():
    expected = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert ShiftedWindows(1, 3, 2).mask(3, 3).int().tolist() == expected


@pytest.mark.parametrize("pattern", [Neighbourhood(3, 4, 3, 1), ShiftedWindows(3, 4, 2, 1, 1)])
def test_what_stands_before_the_grid_is_added(pattern):
    mask = (pattern | Global(1)).mask(13, 13)
    assert mask[0].all()
    assert mask[:, 0].all()
    assert mask[1:, 1:].equal(pattern.mask(13, 13)[1:, 1:])
    assert not pattern.mask(13, 13)[0].any()


@pytest.mark.parametrize("pattern", [Neighbourhood(12, 8, 3), ShiftedWindows(12, 8, 4, 2)])
def test_blocks_far_apart_are_left_out(pattern):
    touched = pattern.layout(96, 96, 8).touched
    assert (touched == 0).sum() > touched.numel() / 2
    inside = pattern.mask(96, 96).view(12, 8, 12, 8).permute(0, 2, 1, 3).flatten(2)
    assert touched.bool().equal(inside.any(-1))


def test_a_line_is_a_window():
    inner = slice(2, 8)
    line = Neighbourhood(10, 1, 1).mask(10, 10)
    assert line.equal(torch.eye(10).bool())
    assert ShiftedWindows(1, 10, 10).mask(10, 10).equal(Full().mask(10, 10))
    square = Neighbourhood(10, 3, 3).mask(30, 30).view(10, 3, 10, 3)[:, 1, :, 1]
    assert square[inner].equal(Window(2).mask(10, 10)[inner])


@pytest.mark.parametrize("pattern", [Neighbourhood(3, 3, 2), ShiftedWindows(3, 3, 2, 1)])
def test_outputs_are_the_formula(pattern):
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=pattern)
    layer = drawn(Attention(spec, dtype=torch.float64), seed=0)
    mask = pattern.mask(9, 9).tolist()
    x = normal(2, 9, 8, seed=1, dtype=torch.float64)
    q, k, v = (
        p(x).view(2, 9, 2, 4).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    found = layer(x)
    for row in range(2):
        heads = torch.zeros(9, 2, 4, dtype=torch.float64)
        for head in range(2):
            for t in range(9):
                weights = [
                    (q[row, head, t] @ k[row, head, s] / 2.0).exp() if mask[t][s] else 0.0
                    for s in range(9)
                ]
                heads[t, head] = sum(w * v[row, head, s] for s, w in enumerate(weights)) / sum(
                    weights
                )
        torch.testing.assert_close(found[row], layer.o_proj(heads.flatten(1)))


@pytest.mark.parametrize("first", [0, 1])
def test_axial_rotations_are_complex_products(first):
    rope, width = AxialRope(3, theta=20.0, first=first), 8
    x = normal(1, 2, 6 + first, width, seed=2, dtype=torch.float64)
    found = rope.rotate(x, torch.arange(6 + first))
    assert found[:, :, :first].equal(x[:, :, :first])
    for cell in range(6):
        row, column = divmod(cell, 3)
        for t in range(width // 4):
            step = 20.0 ** (-t / (width / 4))
            for pair, place in ((2 * t, column), (2 * t + 1, row)):
                for head in range(2):
                    a, b = x[0, head, first + cell, 2 * pair : 2 * pair + 2].tolist()
                    turned = complex(a, b) * cmath.exp(1j * step * place)
                    got = found[0, head, first + cell, 2 * pair : 2 * pair + 2].tolist()
                    assert got == pytest.approx([turned.real, turned.imag], abs=1e-12)


def test_products_depend_on_the_way_from_cell_to_cell():
    rope = AxialRope(5)
    q, k = (normal(1, 1, 1, 8, seed=s, dtype=torch.float64).expand(1, 1, 25, 8) for s in (3, 4))
    products = (rope.rotate(q, torch.arange(25)) @ rope.rotate(k, torch.arange(25)).mT)[0, 0]
    products = products.view(5, 5, 5, 5)
    torch.testing.assert_close(products[1, 1, 2, 3], products[2, 2, 3, 4])
    assert (products[1, 1, 2, 3] - products[1, 1, 3, 2]).abs() > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Neighbourhood(3, 4, 4),
            "a square of 4 x 4 does not fit; give a size of at most 3",
        ),
        (lambda: Neighbourhood(3, 0, 1), "give columns as a whole number of at least 1"),
        (lambda: ShiftedWindows(3, 3, 2, 2), "give a shift from 0 to 1"),
        (lambda: ShiftedWindows(3, 3, 2, first=-1), "give first as a whole number of at least 0"),
        (lambda: AxialRope(0), "give columns as a whole number of at least 1"),
        (lambda: AxialRope(4, theta=1.0), "give a base above 1"),
        (lambda: AttentionSpec(d_model=12, num_heads=2, position=AxialRope(3)), "multiple of 4"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
