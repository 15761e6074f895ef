"""How a composed layer shows itself in a notebook."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from suffice import preset


@pytest.mark.parametrize("mechanism", ["standard", "efficient", "linear", "sliding_window"])
def test_a_spec_shows_how_data_flow_through_it(mechanism):
    spec = preset(mechanism, 48, 3)
    drawing = ElementTree.fromstring(spec._repr_html_())
    assert drawing.tag.endswith("svg")
    words = " ".join(drawing.itertext())
    assert "d_model 48, 3 heads" in words
    assert type(spec.encoder).__name__ in words or mechanism != "efficient"
