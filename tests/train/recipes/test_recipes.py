from __future__ import annotations

import inspect
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

from suffice.data import TASKS, load
from suffice.errors import ConfigError
from suffice.kernels import Elu, Softmax
from suffice.models import LMConfig, TranslatorConfig, ViT
from suffice.patterns import Causal, Full, Window
from suffice.presets import PRESETS, mistral
from suffice.testing import assert_close
from suffice.train.recipes import RECIPES, TASK_RECIPES, recipe, recipe_names, recipe_of_task

NAMES = list(RECIPES)
TEXT = [name for name in NAMES if isinstance(recipe(name).model, LMConfig)]
PAPERS = ("mnist_v2", "imdb")
DRAWN = ("mqar", "induction", "passkey", "copy", "two_hop")
AS_IT_IS = (*PAPERS, "digits_vit", "table", "pictures", *DRAWN)  # the others are large, so small
ONE_TEXT = [name for name in NAMES if not isinstance(recipe(name).model, TranslatorConfig)]
FOUR = ("standard", "optimised", "efficient", "super_attention")


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_names_a_task_and_its_options(name):
    names_its_options(recipe(name))


def names_its_options(experiment):
    legal = inspect.signature(TASKS[experiment.task]).parameters
    assert {option for option, _ in experiment.task_options} <= set(legal)


def test_every_task_has_a_recipe_on_it():
    assert set(TASK_RECIPES) == {*TASKS, "stdlib"}  # a task, text, with its corpus
    for task in TASKS:
        assert recipe_of_task(task).task == task


def test_other_packages_are_asked_only_for_names_that_are_not_here(monkeypatch):
    entry = EntryPoint("theirs", "suffice.train.recipes:digits_vit", "suffice.recipes")
    brought = EntryPoints([entry])
    monkeypatch.setattr(
        "suffice.train.recipes.entry_points", lambda **wanted: brought.select(**wanted)
    )
    assert recipe("theirs", scale="paper") == recipe("digits_vit")
    assert recipe_names() == [*RECIPES, "theirs"]
    with pytest.raises(ConfigError, match="did you mean 'theirs'"):
        recipe("theirz")
    monkeypatch.setattr("suffice.train.recipes.entry_points", pytest.fail)
    assert recipe("imdb").task == "imdb"


@pytest.mark.parametrize("mechanism", list(PRESETS))
@pytest.mark.parametrize("name", ["digits_vit", "imdb", "mqar"])
def test_every_mechanism_fits_each_class_of_model(name, mechanism):
    if name == "mqar" and mechanism == "linformer":
        pytest.skip("sums keys of all positions, so it cannot be causal")
    check_build(recipe(name), mechanism)


@pytest.mark.parametrize("name", ONE_TEXT)
def test_every_recipe_builds_a_model_of_its_sizes(name):
    check_build(recipe(name, scale="paper" if name in AS_IT_IS else "small"), "super_attention")


def check_build(experiment, mechanism):
    spec = experiment.spec(mechanism, 4)
    assert (spec.d_model, spec.num_heads) == (experiment.model_of(mechanism).d_model, 4)
    assert 0 <= (spec.max_length or experiment.model.length) - experiment.model.length < 8, (
        "whole blocks"
    )
    torch.manual_seed(1)
    model = experiment.build(mechanism, 4).eval()
    assert [block.attention.spec for block in model.blocks] == experiment.specs(mechanism, 4)
    if isinstance(model, ViT):
        config = experiment.model_of(mechanism)
        inputs = torch.randn(2, config.channels, config.image_size, config.image_size)
    else:
        inputs = torch.randint(0, experiment.model.vocabulary_size, (2, experiment.model.length))
    logits = model(inputs)
    if isinstance(experiment.model, LMConfig):
        assert logits.shape == (2, experiment.model.length, experiment.model.vocabulary_size)
    else:
        assert logits.shape == (2, experiment.model.num_classes)
    assert torch.isfinite(logits).all()
    torch.manual_seed(1)
    again = experiment.build(mechanism, 4).eval()
    assert_close(again(inputs), logits, "same_math")


def test_layers_of_a_schedule(monkeypatch):
    """A mechanism whose layers differ is built so, and its cost is that of its layers."""

    def alternating(*sizes, layer=0, length=None):
        return mistral(*sizes, layer=layer, length=length, full_every=2)

    monkeypatch.setitem(PRESETS, "alternating", alternating)
    experiment = recipe("digits_vit")
    specs = experiment.specs("alternating", 4)
    assert [spec.pattern for spec in specs] == [Window(2), Full()]
    assert experiment.spec("alternating", 4) == specs[0]
    model = experiment.build("alternating", 4)
    assert [block.attention.spec for block in model.blocks] == specs
    assert experiment.specs("standard", 4) == [experiment.spec("standard", 4)] * 2


def test_sizes_follow_the_length_of_the_model():
    assert recipe("mnist_v2").spec("sliding_window", 4).pattern == Window(8)
    assert recipe("imdb").spec("bigbird", 4).max_length == 32


def test_the_default_is_small():
    experiment = recipe("digits_vit")
    assert experiment == recipe_of_task("digits")
    assert experiment.model.length == 16
    assert count(experiment.build("standard", experiment.num_heads)) < 100_000


@pytest.mark.parametrize(
    ("mechanism", "layer"), list(zip(FOUR, (66_048, 49_536, 33_024, 37_184), strict=True))
)
def test_mnist_is_that_of_version_2(mechanism, layer):
    experiment = recipe("mnist_v2")
    assert (experiment.model.length, experiment.model.d_model, experiment.model.depth) == (
        64,
        128,
        2,
    )
    assert dict(experiment.task_options) == {"size": experiment.model.image_size}
    for heads in (1, 2, 4):
        model = experiment.build(mechanism, heads)
        assert [count(block.attention) for block in model.blocks] == [layer] * 2
        # 276,874 with standard, the paper's "300K"
        assert count(model) == 276_874 - 2 * (66_048 - layer)


@pytest.mark.parametrize(
    ("mechanism", "layer"), list(zip(FOUR, (4_224, 3_168, 2_112, 3_168), strict=True))
)
def test_imdb_is_that_of_version_2(mechanism, layer):
    experiment = recipe("imdb")
    options = dict(experiment.task_options)
    assert options == {
        "length": experiment.model.length,
        "vocabulary_size": experiment.model.vocabulary_size,
    }
    assert (experiment.model.length, experiment.model.d_model, experiment.model.depth) == (
        32,
        32,
        1,
    )
    assert experiment.model.reads_padding
    for heads in (1, 2, 4):
        model = experiment.build(mechanism, heads)
        assert count(model.blocks[0].attention) == layer
        assert count(model) == 648_190 - 4_224 + layer


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_task_fits_its_model(name):
    experiment = recipe(name)
    task = load(experiment.task, rows=64, **dict(experiment.task_options))
    assert experiment.model.length == task.train.inputs.shape[1]
    assert experiment.model.vocabulary_size == task.num_classes
    assert experiment.model.length == load(name, rows=64).train.inputs.shape[1], (
        "the task's own sizes"
    )


@pytest.mark.parametrize("name", TEXT)
def test_a_mechanism_that_cannot_be_causal_is_refused(name):
    message = rf"linformer .* recipe {name}: LowRank sums keys of all positions"
    with pytest.raises(ConfigError, match=message):
        recipe(name).specs("linformer", 2)
    with pytest.raises(ConfigError, match=r"recipe .*: num_heads=7"):
        recipe(name).specs("standard", 7)


@pytest.mark.parametrize("name", DRAWN)
def test_a_small_model_starts_larger_than_a_large_one(name):
    assert recipe(name).model.start == 0.1
    torch.manual_seed(1)
    weight = recipe(name).build("standard", 2).blocks[0].mlp.up.weight
    torch.manual_seed(1)
    usual = replace(recipe(name).model, start=0.02).build(recipe(name).specs("standard", 2))
    assert_close(weight, usual.blocks[0].mlp.up.weight * 5, "same_math")


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="'digit_vit'"):
        recipe("digit_vit")
    with pytest.raises(ConfigError, match="unknown task 'imbd'"):
        recipe_of_task("imbd")
    for ask in (recipe("digits_vit").spec, recipe("digits_vit").build):
        with pytest.raises(ConfigError, match="unknown mechanism 'gqua'"):
            ask("gqua", 4)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match=r"num_heads=3.* d_model=64"):
        recipe("digits_vit").spec("standard", 3)


def test_a_name_may_carry_changes():
    small = recipe("mqar")
    assert {s.pattern for s in small.specs("standard+window:4", 2)} == {Window(4) & Causal()}
    kernels = [spec.kernel for spec in small.specs("linear+softmax:2", 2)]
    assert kernels == [Elu(), Softmax()]
    assert small.specs("standard+draw:1", 2) == small.specs("standard", 2)
    both = recipe("translation_es", scale="small").specs("standard+kv:1", 4)
    assert {spec.kv_heads for spec in both} == {1}
    for use in ("memory:8", "weights:4", "window:4+sinks:1"):
        with pytest.raises(ConfigError, match=use.rpartition("+")[2]):
            small.specs(f"standard+{use}", 2)
