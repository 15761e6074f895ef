"""How a composed layer shows itself in a notebook."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from suffice import preset
from suffice.patterns import Causal, Random, Window
from suffice.view.drawing import draw
from suffice.view.picture import svg


@pytest.mark.parametrize("mechanism", ["standard", "efficient", "linear", "sliding_window"])
def test_a_spec_shows_how_data_flow_through_it(mechanism):
    spec = preset(mechanism, 48, 3)
    drawing = ElementTree.fromstring(spec._repr_html_())
    assert drawing.tag.endswith("svg")
    words = " ".join(drawing.itertext())
    assert "d_model 48, 3 heads" in words
    assert type(spec.encoder).__name__ in words or mechanism != "efficient"


@pytest.mark.parametrize(("pattern", "length"), [
    (Causal(), 32), (Window(40) & Causal(), 80), (Random(2, length=9), 9),
    (Window(3000) & Causal(), 2048),
])  # fmt: skip
def test_a_pattern_shows_twice_its_reach(pattern, length):
    assert pattern._repr_svg_() == svg(draw(pattern, length))
