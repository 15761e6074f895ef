"""The scale of a recipe, and what it does to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.errors import ConfigError
from suffice.train.recipes import (
    RECIPES,
    SCALES,
    SMALL,
    digits_vit,
    imdb,
    mnist_v2,
    recipe,
    recipe_of_task,
)

OWN = ("digits_vit", "table", "pictures", "mqar", "induction", "passkey", "copy", "two_hop")
PAPERS = [name for name in RECIPES if name not in OWN]
FOUR = ("standard", "optimised", "efficient", "super_attention")


def test_the_paper_is_the_default():
    assert SCALES == ("paper", "small")
    for name, function in RECIPES.items():
        assert recipe(name) == function() == recipe(name, scale="paper") == function("paper")
        assert recipe(name).scale == "paper"
        assert SMALL not in recipe(name).title


def test_sizes_of_the_papers_runs_are_as_they_were():
    """Comparisons that were begun go on only while these stay."""
    for experiment in (imdb(), mnist_v2()):
        assert (experiment.scale, experiment.models) == ("paper", ())
    assert mnist_v2().task_options == (("size", 32),)
    assert imdb().task_options == (("length", 32), ("vocabulary_size", 20_000))
    assert (
        mnist_v2().title == "MNIST, ViT of 2 blocks, d_model 128, 64 patches (arXiv:2403.01643v2)"
    )
    assert imdb().title == "IMDB reviews, 1 block, d_model 32, last 32 words (arXiv:2403.01643v2)"


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_of_no_paper_has_one_scale(name):
    with pytest.raises(ConfigError, match=f"recipe {name} has one scale only"):
        recipe(name, scale="small")


def test_an_unknown_scale_is_refused():
    for ask in (lambda: recipe("imdb", scale="smal"), lambda: recipe_of_task("imdb", scale="smal")):
        with pytest.raises(ConfigError, match="unknown scale 'smal'"):
            ask()
    assert recipe_of_task("imdb", scale="small") == imdb("small")


def test_a_small_recipe_differs_field_by_field():
    small = digits_vit().at(
        "small", title="Digits", model={"depth": 1}, training={"epochs": 2}, num_heads=2
    )
    assert small == replace(
        digits_vit(),
        title=f"Digits; {SMALL}",
        model=replace(digits_vit().model, depth=1),
        training=replace(digits_vit().training, epochs=2),
        num_heads=2,
        scale="small",
    )
    assert digits_vit().at("paper", title="Digits") == digits_vit()


def test_a_mechanism_may_have_sizes_of_its_own():
    wide = replace(digits_vit().model, d_model=96, depth=3)
    experiment = replace(digits_vit(), models=(("efficient", wide),))
    assert experiment.model_of("efficient") is wide
    assert experiment.model_of("standard") is experiment.model
    assert [spec.d_model for spec in experiment.specs("efficient", 4)] == [96] * 3
    assert [spec.d_model for spec in experiment.specs("standard", 4)] == [64] * 2
    model = experiment.build("efficient", 4)
    assert model.config == wide
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
