"""Attention maps of trained models: found, looked into, told in numbers and drawn."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
import torch

from papers.tests.looked import ONE, keep, kept, register
from suffice.data import Dataset, load
from suffice.data.dataset import Split
from suffice.errors import CheckpointError
from suffice.layers import AttentionMap
from suffice.models import ClassifierConfig
from suffice.testing import assert_close
from suffice.train.recipes import recipe
from suffice_papers.maps import (
    attention_maps,
    keys_of,
    maps_csv,
    maps_figure,
    maps_records,
    maps_sheet,
    missing_weights,
    request_maps,
)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Let the registry be two tables of the digits and what their models look at."""
    register(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


# which weights


def test_without_weights_the_small_scale_is_meant():
    request = request_maps(ONE, scale=None, heads=None, out=None)
    assert (request.recipe.scale, request.heads, request.seeds) == ("small", (2,), 1)
    assert missing_weights(request) == [("standard", 2, 0), ("super_attention", 2, 0)]


def test_weights_of_the_papers_size_are_taken_before_small_ones():
    small = kept()
    assert request_maps(ONE, scale=None, heads=None, out=None) == small
    assert missing_weights(small) == []
    paper = kept("paper")
    assert request_maps(ONE, scale=None, heads=None, out=None) == paper
    assert request_maps(ONE, scale="small", heads=None, out=None) == small
    assert request_maps(ONE, scale=None, heads=(1,), out=None).heads == (1,)


def test_a_folder_says_of_which_scale_it_is(tmp_path):
    request = request_maps(ONE, scale="paper", heads=None, out=tmp_path / "own")
    assert request_maps(ONE, scale=None, heads=None, out=tmp_path / "own").recipe.scale == "small"
    request.plan.claim(tmp_path / "own", resume=False)
    assert request_maps(ONE, scale=None, heads=None, out=tmp_path / "own").recipe.scale == "paper"


# what they look at


def test_a_model_is_looked_into(digits):
    request = kept()
    found = attention_maps(request, ("super_attention", 2, 0), digits)
    torch.manual_seed(0)
    model = request.recipe.build("super_attention", 2).eval()
    layers = [name for name, module in model.named_modules() if name.endswith("attention")]
    assert [one.layer for one in found.layers] == layers
    for one in found.layers:
        assert_close(one.weights.sum(-1), torch.ones(one.weights.shape[:3]))
        weight = model.get_submodule(one.layer).mixing.weight[0].detach()
        assert_close(one.effective, one.weights @ weight)
    assert torch.equal(found.row, digits.test.inputs[0])
    logits = model(digits.prepare(digits.test.inputs[:1]))
    assert (found.label, found.answer) == (int(digits.test.labels[0]), int(logits.argmax()))
    assert found.words is None
    standard = attention_maps(request, ("standard", 2, 0), digits)
    assert not any(one.mixed for one in standard.layers)


def test_looking_leaves_the_random_state_alone(digits):
    request = kept()
    before = torch.get_rng_state()
    attention_maps(request, ("standard", 2, 0), digits)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_of_other_settings_are_refused(digits):
    request = request_maps(ONE, scale="small", heads=None, out=None)
    training = replace(request.recipe.training, epochs=7)
    keep(request, training=training)
    with pytest.raises(CheckpointError, match="was trained with other settings than recipe digits"):
        attention_maps(request, ("standard", 2, 0), digits)


WORDS = ("<pad>", "good", "bad", "film")
TEXT = ClassifierConfig(
    vocabulary_size=4, length=3, num_classes=2, d_model=8, depth=1, mlp_width=8, reads_padding=True
)


def texts(*, padded=True) -> Dataset:
    """Rows of words, the first of them padded."""
    inputs = torch.tensor([[0, 1, 3], [1, 2, 3]])
    split = Split(inputs, torch.tensor([1, 0]), inputs > 0 if padded else None)
    return Dataset(
        name="words",
        title="",
        source="",
        train=split,
        validation=split,
        test=split,
        num_classes=2,
        vocabulary=WORDS,
    )


def of_words():
    """A request whose recipe reads words."""
    request = request_maps(ONE, scale="small", heads=None, out=None)
    made = replace(recipe("imdb"), name="digits_vit", model=TEXT, scale="small")
    request = replace(request, recipe=made)
    keep(request)
    return request


def test_of_texts_the_first_whole_row_is_read_with_its_words():
    request = of_words()
    found = attention_maps(request, ("super_attention", 2, 0), texts())
    assert found.words == ("good", "bad", "film")
    assert attention_maps(request, ("standard", 2, 0), texts(padded=False)).words == (
        "<pad>",
        "good",
        "film",
    )
    figure = maps_figure(found)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(found.words)
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == [""] * 3


# told and drawn


def test_keys_are_those_that_weights_are_spread_over():
    assert keys_of(torch.full((2, 8), 1 / 8)) == pytest.approx(8.0)
    assert keys_of(torch.eye(5)) == 1.0


def test_records_tell_each_head(digits):
    found = [attention_maps(kept(), ("super_attention", 2, 0), digits)]
    weights = torch.tensor([[[[0.5, 0.5], [0.25, 0.7]], [[1.0, 0.0], [0.0, 1.0]]]])
    effective = torch.tensor([[[[1.0, -1.0], [2.0, 0.0]]] * 2])
    layer = AttentionMap(layer="one", weights=weights, effective=effective)
    first, second = maps_records([replace(found[0], layers=(layer,))])
    assert first["table"] == "tiny"
    assert (first["scale"], first["heads"], first["seed"]) == ("small", 2, 0)
    assert (first["layer"], first["head"], second["head"]) == ("one", 0, 1)
    assert first["row_sum"] == pytest.approx(0.95)
    assert (second["keys"], second["row_sum"]) == (1.0, 1.0)
    assert (first["effective_sum"], first["negative"]) == (1.0, 0.25)
    lines = list(csv.DictReader(io.StringIO(maps_csv([replace(found[0], layers=(layer,))]))))
    assert [line["negative"] for line in lines] == ["0.25", "0.25"]
    (line,) = maps_sheet([replace(found[0], layers=(layer,))]).lines
    assert line.cells[3:] == ("1.45 of 2", "0.950000", "1.00", "0.25")


def test_a_sheet_has_a_line_for_each_layer_and_says_its_scale(digits):
    request = kept()
    found = [attention_maps(request, key, digits) for key in request.plan.cells]
    made = maps_sheet(found)
    depth = request.recipe.model.depth
    assert len(made.lines) == 2 * depth
    assert [line.starts_group for line in made.lines].index(True) == depth
    assert made.lines[0].cells[5:] == ("", "")


def test_a_figure_has_a_row_for_each_map_and_the_picture_beside(digits):
    request = kept()
    found = attention_maps(request, ("super_attention", 2, 0), digits)
    figure = maps_figure(found)
    rows = 2 * len(found.layers)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == rows * 2 + 1
    picture, first = panels[:2]
    assert picture.images[0].get_array().shape == (*found.row.shape[1:], 3)
    assert torch.equal(torch.tensor(first.images[0].get_array()), found.layers[0].weights[0, 0])
    signed = next(a for a in panels if a.get_ylabel().endswith("W_A")).images[0]
    assert signed.norm.vmin == -signed.norm.vmax
    assert first.images[0].norm.vmin == 0.0
