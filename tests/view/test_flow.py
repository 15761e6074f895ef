"""The drawing of what a layer computes, as a record, as text and as SVG; and its formulas."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs.formula import formulas
from suffice import AttentionSpec
from suffice.combine import Differential
from suffice.encoders import MLA, HeadRMS, Latent
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.presets import PRESETS, TITLES
from suffice.view import flow, flow_svg, flow_text
from suffice.view.catalogue import drawn_spec
from suffice.view.flow import KINDS

SPECS = {name: drawn_spec(name, 64, 4, length=64) for name in PRESETS}
SVG = "{http://www.w3.org/2000/svg}"


def titles(lane):
    return [box.title for box in lane]


@pytest.mark.parametrize("name", PRESETS)
def test_the_maps_of_the_drawing_are_those_of_the_layer(name):
    """The notes of the learned maps count the parameters of the layer's maps, biases aside."""
    spec = SPECS[name]
    drawn = flow(spec, 64)
    numbers = 0
    for box in drawn.boxes:
        if box.kind == "map":
            inputs, outputs = box.note.partition(",")[0].split(" × ")
            numbers += int(inputs) * int(outputs)
    maps = sum(m.inputs * m.outputs for m in spec.encoder.maps(spec).values())
    assert numbers == maps + spec.num_heads * spec.value_width * spec.d_model


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_cached_is_marked(name):
    spec = SPECS[name]
    cached = sum(box.cached for box in flow(spec).boxes)
    assert cached == len(spec.cached_widths)


@pytest.mark.parametrize(
    ("name", "queries", "keys", "values"),
    [
        ("standard", ["W_Q"], ["W_K"], ["W_V"]),
        ("optimised", ["W_Q"], ["W_K"], ["x"]),
        ("efficient", ["W_Q"], ["x"], []),
        ("super_attention", ["W_Q"], ["x"], ["W_A"]),
        ("qk_norm", ["W_Q", "norm"], ["W_K", "norm"], ["W_V"]),
        ("mistral", ["W_Q", "rotate"], ["W_K", "rotate"], ["W_V"]),
        ("linear", ["W_Q", "φ"], ["W_K", "φ"], ["W_V"]),
        ("linformer", ["W_Q"], ["W_K", "E"], ["W_V", "E"]),
    ],
)
def test_lanes_of_mechanisms(name, queries, keys, values):
    assert [titles(lane) for lane in flow(SPECS[name]).lanes] == [queries, keys, values]


def test_compositions_of_ones_own_are_drawn_too():
    spec = AttentionSpec(
        d_model=64,
        num_heads=4,
        num_kv_heads=2,
        encoder=Latent(),
        norm=HeadRMS(),
        position=Rope(),
        pattern=Causal(),
    )
    drawn = flow(spec)
    assert titles(drawn.lanes[1]) == ["W_C", "norm", "rotate"]
    assert drawn.values_from_keys == 1
    assert drawn.heads == (4, 2, 2)
    latent = AttentionSpec(
        d_model=64, num_heads=4, encoder=MLA(rank=20, rotary_dim=8, query_rank=30), position=Rope()
    )
    assert titles(flow(latent).lanes[0]) == ["W_DQ", "W_UQ", "rotate"]
    assert flow(latent).lanes[1][0].note == "64 × 28, norm"
    pairs = AttentionSpec(d_model=64, num_heads=4, combine=Differential())
    assert flow(pairs).heads == (8, 8, 4)


def test_text_says_who_shares_keys():
    assert flow_text(flow(SPECS["gqa"]))[1].endswith("2 heads, each read by 2")
    assert flow_text(flow(SPECS["mqa"]))[1].endswith("1 head, read by 4")
    infini = flow_text(flow(SPECS["infini"]))
    assert infini[3] == "memory   M = Σ φ(k) vᵀ earlier segments of 16"


@pytest.mark.parametrize("name", PRESETS)
def test_boxes_do_not_overlap_and_stay_on_the_page(name):
    root = ElementTree.fromstring(flow_svg(flow(SPECS[name], 64), TITLES[name]))
    width, height = (float(root.get(size)) for size in ("width", "height"))
    boxes = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") in KINDS:
            rect = group.find(f"{SVG}rect")
            x, y, w, h = (float(rect.get(n)) for n in ("x", "y", "width", "height"))
            assert x >= 0 <= y
            assert x + w <= width
            assert y + h <= height
            boxes.append((x, y, x + w, y + h))
    assert len(boxes) == len(list(flow(SPECS[name]).boxes))
    for number, a in enumerate(boxes):
        for b in boxes[number + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_the_lines_between_heads_are_those_of_the_layer():
    root = ElementTree.fromstring(flow_svg(flow(SPECS["gqa"])))
    ends = [line.get("x2") for line in root.iter(f"{SVG}line") if line.get("class") == "reads"]
    assert [ends.index(end) for end in ends] == [0, 0, 2, 2]


@pytest.mark.parametrize("name", PRESETS)
def test_formulas_are_balanced_and_end_in_y(name):
    lines = formulas(SPECS[name])
    assert re.fullmatch(r"y = .*\\operatorname\{Concat\}\(.*\).* W\^O", lines[-1])
    assert any(re.search(r"\\mathrm\{head\}_i =|o_t =", line) for line in lines[:-1])
    for line in lines:
        assert line.count("{") == line.count("}")
        assert line.count(r"\left") == line.count(r"\right")


def test_formulas_have_the_symbols_of_the_papers():
    """No sizes: a page holds for every width and number of heads."""
    for name, spec in SPECS.items():
        assert not re.search(r"sqrt\{\d|_\{?[3-9]", " ".join(formulas(spec))), name
    assert any(r"\sqrt{d_k}" in line and "+ M" in line for line in formulas(SPECS["longformer"]))
    assert not any("+ M" in line for line in formulas(SPECS["standard"]))
    assert any("K_{g(i)}" in line for line in formulas(SPECS["gqa"]))
    assert any(r"K^\top" in line for line in formulas(SPECS["mqa"]))
    assert formulas(SPECS["efficient"])[2] == "V = x = K"
    assert any(r"W^{KR}" in line for line in formulas(SPECS["mla"]))
    assert any(r"\sqrt{d_h + d_h^R}" in line for line in formulas(SPECS["mla"]))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("retnet", r"S_t = \gamma\, S_{t-1} + k_t^\top v_t"),
        ("mamba2", r"S_t = a_t\, S_{t-1} + \Delta_t\, k_t^\top v_t"),
        ("gla", r"S_t = \operatorname{Diag}(\alpha_t)\, S_{t-1} + k_t^\top v_t"),
        ("deltanet", r"S_t = (I - \beta_t k_t^\top k_t)\, S_{t-1} + \beta_t k_t^\top v_t"),
        ("gated_deltanet", r"S_t = \alpha_t\, (I - \beta_t k_t^\top k_t)\, S_{t-1}"),
    ],
)
def test_formulas_of_recurrences_say_how_the_state_changes(name, state):
    lines = formulas(SPECS[name])
    assert sum(line.startswith(state) for line in lines) == 1
    assert r"\operatorname{norm}(\mathrm{head}_1)" in lines[-1]
    assert "W^G" in lines[-1]
