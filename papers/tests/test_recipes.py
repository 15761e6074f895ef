"""The models of the papers: their layers' parameters as printed, and their totals."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points

import pytest
import torch

from suffice.cli.compare import CompareOptions
from suffice.errors import ConfigError
from suffice.models.kinds import build_model
from suffice.train.recipes import recipe
from suffice_papers.atlas.recipes import ATLAS
from suffice_papers.recipes import RECIPES, WIDTHS, mnist_v1
from suffice_papers.tables import STAND_INS
from tests.train.recipes.test_amazon import check_data
from tests.train.recipes.test_recipes import check_build, names_its_options

FOUR = ("standard", "optimised", "efficient", "super_attention")
LAYERS = {
    "mnist_v1": (16_640, 12_480, 8_320, 12_480),
    "cifar100_v1": (83_520, 62_640, 41_760, 62_640),
    "cifar100_v2": (263_168, 197_376, 131_584, 197_890),
    "imagenet_v2": (2_362_368, 1_771_776, 1_181_184, 1_220_190),
    "imagenet_equal_params": (2_362_368, 2_000_016, 1_294_440, 1_333_446),
}
LENGTHS = {
    "mnist_v1": (64, 64, 2),
    "cifar100_v1": (144, 144, 8),
    "cifar100_v2": (257, 256, 8),
    "imagenet_v2": (197, 768, 8),
}
HEADS = {
    "mnist_v1": (1, 2, 4),
    "cifar100_v1": (1, 2, 4, 6),
    "cifar100_v2": (1, 2, 4, 8),
    "imagenet_v2": (12,),
    "imagenet_equal_params": (12,),
}
# in hundredths of a million, cut and not rounded
TOTALS = dict(zip(FOUR, (6054, 6012, 6009, 6044), strict=True))


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def total(experiment, mechanism, heads):
    """Count the parameters of a model from those of its twin of one block."""
    config, specs = experiment.model_of(mechanism), experiment.specs(mechanism, heads)
    with torch.device("meta"):
        model = build_model(replace(config, depth=1), specs[:1])
    return count(model) + (config.depth - 1) * count(model.blocks[0])


@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_are_as_printed(name):
    experiment = recipe(name)
    for mechanism, parameters in zip(FOUR, LAYERS[name], strict=True):
        model = experiment.model_of(mechanism)
        for heads in HEADS[name]:
            specs = experiment.specs(mechanism, heads)
            counts = [spec.cost(model.length).parameters for spec in specs]
            assert counts == [parameters] * model.depth


@pytest.mark.parametrize("name", list(LENGTHS))
def test_tokens_width_and_layers_are_the_papers(name):
    model = recipe(name).model
    assert (model.length, model.d_model, model.depth) == LENGTHS[name]
    assert recipe(name).num_heads == HEADS[name][-1] or name == "cifar100_v1"


@pytest.mark.parametrize("mechanism", FOUR)
def test_totals_of_imagenet_are_as_printed(mechanism):
    experiment = recipe("imagenet_equal_params")
    assert total(experiment, mechanism, 12) // 10_000 == TOTALS[mechanism]
    model = experiment.model_of(mechanism)
    sizes = {"standard": (768, 8), "optimised": (816, 8)}.get(mechanism, (804, 9))
    assert (model.d_model, model.depth, model.mlp_width) == (*sizes, 3072)


def test_any_other_mechanism_has_the_sizes_of_standard():
    experiment = recipe("imagenet_equal_params")
    assert experiment.model_of("performer") == experiment.model == recipe("imagenet_v2").model


def test_the_head_of_the_example_is_wide_and_drops():
    for name in ("mnist_v1", "cifar100_v1"):
        model = recipe(name).model
        assert (model.pooling, model.head_widths) == ("flatten", (2048, 1024))
        assert (model.dropout, model.head_dropout) == (0.1, 0.5)
        assert recipe(name).training.augment == "flip_turn_zoom"
    for name in ("cifar100_v2", "imagenet_v2"):
        assert recipe(name).model.pooling == "class_token"
        assert recipe(name).training.augment is None


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", [name for name in STAND_INS if name != "amazon"])
def test_stand_ins_have_the_sizes_and_name_their_own_data(name, scale):
    paper = recipe(name, scale=scale)
    for other in STAND_INS[name]:
        stand_in = recipe(other, scale=scale)
        assert stand_in.training == paper.training
        assert stand_in.num_heads == paper.num_heads
        for mechanism in FOUR:
            ours, theirs = stand_in.model_of(mechanism), paper.model_of(mechanism)
            assert (ours.length, ours.d_model, ours.depth) == (
                theirs.length,
                theirs.d_model,
                theirs.depth,
            )
        assert stand_in.task != paper.task


@pytest.mark.parametrize("millions", WIDTHS)
def test_the_models_have_the_millions_of_their_names(millions):
    scaled = recipe(f"amazon_scaling_{millions}m")
    with torch.device("meta"):
        model = scaled.build("standard", 4)
    assert count(model) == pytest.approx(1e6 * millions, rel=0.02)
    assert scaled.model.mlp_width == scaled.model.d_model
    assert scaled.model.depth == recipe("amazon").model.depth


def test_small_models_grow_as_the_large_ones_do():
    small = [recipe(f"amazon_scaling_{m}m", scale="small").model.d_model for m in WIDTHS]
    assert small == [24, 40, 64, 80, 96]


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("name", [name for name in RECIPES if "amazon" in name])
def test_the_data_fit_the_model(name, scale):
    check_data(recipe(name, scale=scale), scale)


@pytest.mark.parametrize("name", [name for name in RECIPES if "translation" not in name])
def test_a_recipe_builds_a_model_of_its_sizes(name):
    chosen = recipe(name, scale="paper" if name in ATLAS else "small")
    names_its_options(chosen)
    check_build(chosen, "super_attention")


def test_compare_finds_them_by_name():
    brought = {entry.name: entry.load() for entry in entry_points(group="suffice.recipes")}
    assert brought.items() >= RECIPES.items()
    plan = CompareOptions(recipe="mnist_v1", scale="small").plan()
    assert plan.recipe == mnist_v1("small")
    with pytest.raises(ConfigError, match="mnist_v3"):
        recipe("mnist_v3")
