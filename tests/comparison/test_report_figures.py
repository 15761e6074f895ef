from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from suffice.comparison.report.plots import (
    FIGURES,
    average,
    draw_figures,
    learning_curves,
    tradeoff,
)
from suffice.comparison.verdict import judge
from suffice.errors import ConfigError
from suffice.utils.canvas import (
    COLOURS,
    KNOWN,
    PAGE,
    line_styles,
    png,
)

from .synthetic import from_accuracies, make_cell, make_results, realistic

BASE = [0.970, 0.971, 0.969, 0.970, 0.970]
NAMES = ["standard", "optimised", "efficient", "super_attention"]


@pytest.fixture(scope="module")
def results():
    return realistic()


@pytest.fixture(scope="module")
def figures(results):
    return draw_figures(results, judge(results))


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_figure_is_drawn(figures):
    assert list(figures) == list(FIGURES) == ["differences", "tradeoff", "curves"]


def test_curves_have_a_column_per_heads_and_a_line_per_mechanism(results, figures):
    axes = figures["curves"].axes
    assert len(axes) == 4
    assert [a.get_title(loc="left") for a in axes[:2]] == ["1 head", "4 heads"]
    assert axes[0].get_ylabel() == "validation loss (log scale)"
    assert axes[2].get_ylabel() == "validation accuracy, %"
    assert axes[2].get_xlabel() == "epoch"
    assert all(len(a.get_lines()) == 4 and len(a.collections) == 4 for a in axes)
    line = axes[3].get_lines()[2]
    cells = results.select("efficient", 4)
    first = 100 * np.mean([cell.epochs[0]["validation_accuracy"] for cell in cells])
    assert line.get_xdata()[0] == 1
    assert line.get_ydata()[0] == pytest.approx(first)


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_epochs_are_counted_in_whole_numbers(epochs):
    cells = tuple(make_cell(seed=seed, epochs=epochs) for seed in range(2))
    axes = learning_curves(replace(make_results(), cells=cells)).axes[1]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_the_mean_goes_as_far_as_half_of_the_seeds():
    cells = [make_cell(seed=seed, epochs=length) for seed, length in enumerate((2, 4, 6, 6))]
    means = average(cells, "validation_loss")
    assert {epoch: summary.n for epoch, summary in means.items()} == {
        1: 4, 2: 4, 3: 3, 4: 3, 5: 2, 6: 2,
    }  # fmt: skip
    assert max(average([*cells, make_cell(seed=9, epochs=1)], "validation_loss")) == 4


def test_one_seed_has_a_line_and_no_band():
    figure = learning_curves(make_results([make_cell(epochs=3)]))
    assert list(figure.axes[1].get_lines()[0].get_xdata()) == [1, 2, 3]
    paths = [path for band in figure.axes[1].collections for path in band.get_paths()]
    assert all(len(path.vertices) == 0 for path in paths)


def test_tradeoff_places_points_bars_and_band(results, figures):
    panel = figures["tradeoff"].axes[1]
    verdict = judge(results)
    found = verdict.find("efficient", 4)
    bars = dict(zip(NAMES, panel.containers, strict=True))
    point = bars["efficient"].lines[0].get_xydata()[0]
    assert point == pytest.approx([6.291456, 100 * found.quality.mean])
    (low, high) = bars["efficient"].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((100 * found.quality.low, 100 * found.quality.high))
    box = panel.patches[0].get_bbox()
    top = 100 * verdict.qualities[4].mean
    assert (box.y0, box.y1) == pytest.approx((top - 1.0, top))
    assert sorted(texts(panel)) == sorted(NAMES)


def test_tradeoff_names_do_not_cover_each_other(figures):
    figure = figures["tradeoff"]
    figure.draw_without_rendering()
    for panel in figure.axes:
        boxes = [text.get_window_extent() for text in panel.texts]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("cost", "title", "x"),
    [
        ("latency", "latency of one batch, ms", 1e3),
        ("parameters", "model parameters, thousands", 1e-3),
    ],
)
def test_tradeoff_follows_the_cost_of_the_verdict(results, cost, title, x):
    verdict = judge(results, cost=cost)
    panel = tradeoff(results, verdict).axes[1]
    assert panel.get_xlabel() == title
    own = verdict.find("efficient", 4).cost.value
    assert panel.containers[2].lines[0].get_xdata()[0] == pytest.approx(own * x)


def test_tradeoff_refuses_a_cost_it_cannot_draw(results):
    with pytest.raises(ConfigError, match="unknown cost 'flop'; did you mean 'flops'"):
        tradeoff(results, replace(judge(results), by="flop"))


def test_differences_show_intervals_and_margin(results, figures):
    panel = figures["differences"].axes[0]
    verdict = judge(results)
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels[:2] == ["optimised (1 head)", "efficient (1 head)"]
    found = verdict.find("efficient", 1).difference
    ends = panel.containers[1].lines[2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx((100 * found.low, 100 * found.high))
    assert [line.get_xdata()[0] for line in panel.get_lines()[-2:]] == pytest.approx([-1.0, 0.0])
    assert panel.get_xlim()[0] < -1.0 < 0.0 < panel.get_xlim()[1]


def test_only_figures_with_numbers_are_drawn():
    results = from_accuracies({"standard": BASE})
    bare = make_results([make_cell(epochs=0)])
    assert list(draw_figures(results, judge(results))) == ["tradeoff", "curves"]
    assert list(draw_figures(bare, judge(bare))) == ["tradeoff"]


def test_a_mechanism_has_one_colour_everywhere(figures):
    wanted = line_styles(NAMES)["efficient"].colour
    assert figures["curves"].axes[0].get_lines()[2].get_color() == wanted
    assert figures["tradeoff"].axes[0].containers[2].lines[0].get_color() == wanted
    assert figures["differences"].axes[0].containers[1].lines[0].get_color() == wanted


def test_more_mechanisms_than_colours_still_have_looks():
    many = line_styles([*KNOWN, *(f"m{i}" for i in range(9))])
    assert len({(style.colour, style.marker) for style in many.values()}) == len(many) == 15
    every = line_styles([f"m{i}" for i in range(len(COLOURS))])
    assert len({style.colour for style in every.values()}) == len(COLOURS)
    assert len({line_style.colour for line_style in many.values()} - {COLOURS[0][0]}) == 7


def luminance(colour: str) -> float:
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("pair", COLOURS)
def test_every_colour_stands_out_on_its_page(pair):
    assert contrast(pair[0], PAGE[0]) >= 3.0
    assert contrast(pair[1], PAGE[1]) >= 4.5


# Vienot 1999: what a protanope and a deuteranope see of linear RGB
BLIND = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("theme", [0, 1])
def test_the_papers_mechanisms_stay_apart_for_the_colour_blind(blindness, theme):
    seen = [np.array(BLIND[blindness]) @ np.array(to_rgb(pair[theme])) for pair in COLOURS[:4]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.15


def settings() -> dict:
    # reading "backend" would make matplotlib choose one and import pyplot
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}


def test_global_state_of_matplotlib_is_left_alone(results):
    matplotlib.rcParams["axes.grid"] = True
    before, modules = settings(), set(sys.modules)
    try:
        png(learning_curves(results))
        assert settings() == before
    finally:
        matplotlib.rcParams["axes.grid"] = False
    assert "matplotlib.pyplot" not in set(sys.modules) - modules


@pytest.mark.parametrize("name", ["_hidden", "a$b$c", r"\frac", "<b>&"])
def test_any_name_is_drawn_as_it_is(name):
    results = from_accuracies({"standard": BASE, name: BASE})
    verdict = judge(results)
    figures = draw_figures(results, verdict)
    assert name in texts(figures["tradeoff"].axes[0])
    assert name in [text.get_text() for text in figures["curves"].legends[0].get_texts()]
    for figure in figures.values():
        assert png(figure).startswith(b"\x89PNG")


def test_the_values_of_learning_nothing_stand_below_the_axes():
    accuracies = {"standard": [0.9, 0.91, 0.92], "b": [0.89, 0.9, 0.91]}
    results = from_accuracies(accuracies, majority=0.875, chance=0.5)
    below = tradeoff(results, judge(results)).axes[0].get_xlabel().split("\n", 1)[1]
    wanted = "learning nothing: most frequent class 87.5, blind guess 50"
    assert below.split() == wanted.split()


def test_no_label_is_struck_by_a_bar():
    accuracies = {"standard": 0.8, "optimised": 0.795, "efficient": 0.79, "super_attention": 0.805}
    accuracies |= {"linear": 0.798, "gqa": 0.801}
    flops = dict(zip(accuracies, (1000, 960, 940, 970, 950, 1010), strict=True))
    random = np.random.default_rng(0)
    drawn = {name: list(mean + random.normal(0, 0.02, 3)) for name, mean in accuracies.items()}
    results = from_accuracies(drawn, flops=flops)
    figure = tradeoff(results, judge(results))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    bars = [
        bar.get_transform().transform(bar.get_segments()[0])
        for container in axes.containers
        for bar in container[2]
    ]
    labels = {text.get_text(): text.get_window_extent() for text in axes.texts}
    for name in accuracies:
        box = labels[name]
        for (x, low), (_, high) in bars:
            struck = box.x0 < x < box.x1 and box.y0 < max(low, high) and box.y1 > min(low, high)
            assert not struck, name


def test_figures_follow_the_metric():
    results = from_accuracies({"standard": BASE, "b": BASE})
    by_loss, by_perplexity = (judge(results, metric=m) for m in ("log-loss", "perplexity"))
    panel = tradeoff(results, by_loss).axes[0]
    assert panel.get_ylabel() == "test loss, nats, lower is better"
    band = panel.patches[0].get_bbox()
    top = -by_loss.qualities[1].mean
    assert sorted((band.y0, band.y1)) == pytest.approx([top, top + 0.01])
    assert (
        tradeoff(results, by_perplexity).axes[0].get_ylabel() == "test perplexity, lower is better"
    )
    curve = learning_curves(results, by_perplexity.metric).axes[0]
    loss = np.mean([cell.epochs[0]["validation_loss"] for cell in results.select("b", 1)])
    assert curve.get_ylabel() == "validation perplexity"
    assert curve.get_lines()[1].get_ydata()[0] == pytest.approx(np.exp(loss))


def test_points_of_equal_cost_stand_side_by_side():
    names = ("standard", "a", "b")
    results = from_accuracies(
        dict.fromkeys(names, BASE), flops={"standard": 2000, "a": 1000, "b": 1000}
    )
    panel = tradeoff(results, judge(results)).axes[0]
    x, y, z = (float(bar.lines[0].get_xdata()[0]) for bar in panel.containers)
    left, right = panel.get_xlim()
    assert x == pytest.approx(0.002)
    assert z - y > 0.03 * (right - left)
    assert (y + z) / 2 == pytest.approx(0.001)
