"""Both counts of FLOPs: against torch's own counter, and against what the paper says."""

from __future__ import annotations

from io import StringIO

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, preset
from suffice.errors import ConfigError, DataError
from suffice.ops import register_flops
from suffice.presets import takes_length
from suffice.utils import canvas
from suffice_papers import flops as flops_figures
from suffice_papers.flops import (
    COUNTS,
    HEADS,
    MECHANISMS,
    PAPER_CONSTANTS,
    POWERS,
    _captions,
    average,
    averages,
    executed,
    extra,
    flops,
    paper_flops,
    right_order,
    sentences,
    sizes,
)


@pytest.mark.parametrize(("length", "d_model"), [(16, 16), (24, 16), (8, 64), (64, 64)])
@pytest.mark.parametrize("num_heads", [1, 4])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_true_flops_are_those_torch_counts(mechanism, num_heads, length, d_model):
    options = {"length": length} if takes_length(mechanism) else {}
    layer = Attention(preset(mechanism, d_model, num_heads, **options), impl="matmul")
    x = torch.randn(1, length, d_model, requires_grad=True)
    register_flops()
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    want = executed(mechanism, length=length, d_model=d_model, num_heads=num_heads)
    assert counter.get_total_flops() == want


@pytest.mark.parametrize(
    ("mechanism", "squares", "pairs"),
    [
        ("standard", 8, 4),
        ("optimised", 6, 4),
        ("efficient", 4, 4),
        ("super_attention", 4, 6),
    ],
)
def test_true_flops_are_products_of_matrices(mechanism, squares, pairs):
    for length, d_model in ((16, 64), (128, 32)):
        want = 3 * (squares * length * d_model**2 + pairs * length**2 * d_model)
        assert executed(mechanism, length=length, d_model=d_model, num_heads=2) == want


def test_ratios_are_of_every_pair_of_powers():
    assert POWERS[0] == 16
    assert POWERS[-1] == 16_384
    for heads in HEADS:
        grid = extra(COUNTS["paper"], "efficient", heads)
        assert len(grid) == 11
        assert all(len(row) == 11 for row in grid)
        at = {"length": POWERS[2], "d_model": POWERS[7], "num_heads": heads}
        want = paper_flops("standard", **at) / paper_flops("efficient", **at) - 1
        assert grid[7][2] == want


def test_averages_settle_which_caption_is_right():
    found = averages("paper")
    assert [f"{100 * found[heads]:.1f}" for heads in HEADS] == ["29.7", "24.9", "20.3", "16.2"]
    assert right_order(found) == (1, 2, 4, 8)
    assert right_order(dict(zip((8, 4, 2, 1), found.values(), strict=True))) == (8, 4, 2, 1)
    assert right_order(dict.fromkeys(HEADS, 0.5)) is None
    first = sentences()[0]
    assert "29.7/24.9/20.3/16.2% for 1, 2, 4 and 8 heads: the text of appendix B.2 is" in first
    assert first.endswith("the caption of figure 6 in v3 is reversed.")
    other = _captions("1/2/3/4", (8, 4, 2, 1))
    assert "the caption of figure 6 in v3 is right (30, 25, 20 and 16% for 8, 4, 2 and 1" in other
    assert "neither" in _captions("1/2/3/4", None)


def test_the_supremum_is_two_thirds():
    standard, efficient = PAPER_CONSTANTS["standard"], PAPER_CONSTANTS["efficient"]
    highest = max(map(max, extra(COUNTS["paper"], "efficient", 1)))
    assert 0.66 < highest < standard / efficient - 1 == pytest.approx(2 / 3)
    assert "66.6%" in sentences()[1]


def test_true_ratio_is_the_share_of_the_features():
    grid = extra(COUNTS["executed"], "efficient", 8)
    assert grid[4][6] == pytest.approx(POWERS[4] / (POWERS[4] + POWERS[6]))
    assert average(grid) == pytest.approx(0.5)
    assert "50.0%" in sentences()[2]


def test_tables_and_figures_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(canvas, "DPI", 50)
    monkeypatch.setattr(flops_figures, "SURFACE", (128, 512))
    out = StringIO()
    paths = flops(tmp_path / "figures", Console(file=out, width=80))
    told = out.getvalue()
    assert "29.7%" in told
    assert "CIFAR100" in told
    assert "…" not in told
    assert sorted(path.name for path in paths) == [
        f"flops_{name}.{ending}"
        for name in ("heatmaps", "slopes", "surfaces")
        for ending in ("png", "svg")
    ]
    for path in paths:
        if path.suffix == ".svg":
            assert "<svg" in path.read_text()
        else:
            with Image.open(path) as image:
                assert image.size[0] >= 9 * 50


def test_sizes_hold_both_counts_beside_standard():
    table = sizes()
    assert len(table.rows) == 5 * 4
    cells = {column.header: list(column.cells) for column in table.columns[:4]}
    row = cells["size"].index("64 x 128")
    assert cells["mechanism"][row] == "standard"
    assert cells["equation 24"][row] == f"{368_640 / 1e6:,.3f}"


def test_surfaces_have_a_panel_for_each_mechanism_and_count():
    figure = flops_figures.surfaces()
    figure.canvas.draw()
    named = [axes.zaxis.label for axes in figure.axes if axes.get_zlabel()]
    assert [one.get_text() for one in named] == ["GFLOPs", "GFLOPs"]
    assert all(one.get_window_extent().x0 >= 0 for one in named)  # not cut off
    assert [axes.get_title() for axes in figure.axes] == [
        f"{mechanism}\n{count.title}" for count in COUNTS.values() for mechanism in MECHANISMS
    ]


def test_slopes_are_lines_by_the_equation_and_curves_by_execution():
    paper, true = flops_figures.slopes().axes
    for mechanism, line in zip(MECHANISMS, paper.get_lines(), strict=True):
        steps = {round(float(b - a), 9) for a, b in zip(*_neighbours(line), strict=True)}
        assert len(steps) == 1
        assert line.get_ydata()[0] == pytest.approx(
            paper_flops(mechanism, length=64, d_model=64, num_heads=1) / 1e6
        )
    for line in true.get_lines():
        rises = [float(b - a) for a, b in zip(*_neighbours(line), strict=True)]
        assert rises == sorted(rises)
        assert rises[-1] > 2 * rises[0]


def _neighbours(line):
    found = line.get_ydata()
    return found[:-1], found[1:]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*flops_slopes.png"):
        flops(tmp_path / "file", Console(file=StringIO()))


@pytest.mark.parametrize(
    ("mechanism", "constant"),
    [("standard", 15), ("optimised", 12), ("super_attention", 12), ("efficient", 9)],
)
def test_equation_24(mechanism, constant):
    for length, d_model, num_heads in ((1, 1, 1), (64, 128, 4), (257, 256, 8)):
        want = constant * length * d_model + 15 * num_heads * length * length
        got = paper_flops(mechanism, length=length, d_model=d_model, num_heads=num_heads)
        assert got == want


def test_heatmaps_of_the_paper():
    """Standard over efficient, on a grid of powers of two: 30, 25, 20 and 16 percent more."""
    grid = [2**n for n in range(4, 15)]
    found, most = [], 0.0
    for num_heads in (1, 2, 4, 8):
        ratios = [
            paper_flops("standard", length=t, d_model=d, num_heads=num_heads)
            / paper_flops("efficient", length=t, d_model=d, num_heads=num_heads)
            - 1
            for t in grid
            for d in grid
        ]
        found.append(round(100 * sum(ratios) / len(ratios), 1))
        most = max(most, *ratios)
    assert found == [29.7, 24.9, 20.3, 16.2]
    assert round(100 * most, 1) == 66.6


def test_equation_24_knows_four_mechanisms():
    with pytest.raises(ConfigError, match="'gqa'"):
        paper_flops("gqa", length=8, d_model=8, num_heads=2)
