"""Every mechanism as a pattern to draw."""

from __future__ import annotations

import pytest

import suffice
from suffice import patterns
from suffice.presets import PRESETS
from suffice.studio.sketches import LENGTHS, sketches
from suffice.view import expression


def test_every_mechanism_is_sketched():
    by_name = sketches()
    assert set(by_name) == set(PRESETS)
    for name, mechanism in by_name.items():
        assert mechanism["summary"].endswith("."), name
        for key, sketch in mechanism["sketches"].items():
            assert int(key.split()[0]) in LENGTHS
            pattern = eval(sketch["expression"], vars(patterns))
            assert pattern.causal == key.endswith("causal"), (name, key)
    assert by_name["linformer"]["sketches"]["64"]["keys"] < 64
    assert "64 causal" not in by_name["linformer"]["sketches"]
    assert not by_name["performer"]["sketches"]["64"]["pairs"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_line_of_a_sketch_makes_its_pattern(name):
    key, sketch = next(iter(sketches()[name]["sketches"].items()))
    spec = eval(sketch["line"], {"suffice": suffice})  # the page shows this line
    assert expression(spec.pattern) == sketch["expression"], key
