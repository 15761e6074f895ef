from __future__ import annotations

import pytest

from suffice.train.recipes import RECIPES, recipe

FOUR = ("standard", "optimised", "efficient", "super_attention")


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("mechanism", "layer"), list(zip(FOUR, (16_640, 12_480, 8_320, 12_480), strict=True))
)
def test_amazon_is_that_of_version_2(mechanism, layer):
    paper = recipe("amazon")
    assert (paper.model.length, paper.model.d_model, paper.model.depth) == (64, 64, 3)
    for heads in (1, 2, 4):
        specs = paper.specs(mechanism, heads)
        assert [spec.cost(64).parameters for spec in specs] == [layer] * 3
    assert count(paper.build(mechanism, 4)) == 2_641_149 - 3 * (16_640 - layer)


@pytest.mark.parametrize("name", [name for name in RECIPES if "amazon" in name or "cloth" in name])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_data_fit_the_model(name, scale):
    check_data(recipe(name, scale=scale), scale)


def check_data(experiment, scale):
    options = dict(experiment.task_options)
    assert options["length"] == experiment.model.length
    assert options["vocabulary_size"] == experiment.model.vocabulary_size
    assert experiment.model.num_classes == 5
    assert experiment.model.d_model % 8 == 0, "up to eight heads"
    assert experiment.scale == scale
    assert ("small scale" in experiment.title) == (scale == "small")


def test_the_clothing_is_read_by_the_model_of_amazon():
    experiment, amazon = recipe("womens_clothing"), recipe("amazon")
    assert (experiment.task, experiment.training) == ("womens_clothing", amazon.training)
    assert experiment.model.d_model == amazon.model.d_model
