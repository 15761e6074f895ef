from __future__ import annotations

import math

import pytest
import torch

import suffice.train.recipes as package
from suffice.errors import ConfigError
from suffice.text import CORPORA, Characters, TokenFile
from suffice.train.language import fit_lm
from suffice.train.recipes import LM_RECIPES, lm_recipe

NAMES = list(LM_RECIPES)
PARAMETERS = {  # at their tokenizers' vocabularies
    "shakespeare_char": (65, 804_096),
    "stdlib_bpe": (2048, 804_096 + 128 * (2048 - 65) + 128 * 64),
    "nanogpt_124m": (50_257, 124_373_760),
    "llama_1b_efficient": (32_000, 1_140_390_912),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_function_of_its_name(name):
    experiment = lm_recipe(name)
    assert LM_RECIPES[name].__name__ == experiment.name == name
    assert getattr(package, name) is LM_RECIPES[name]
    assert experiment == lm_recipe(name)
    assert experiment.title
    assert experiment.corpus in CORPORA


@pytest.mark.parametrize("name", NAMES)
def test_the_model_has_the_published_size(name):
    vocabulary, count = PARAMETERS[name]
    config, specs = lm_recipe(name).configured(vocabulary)
    model = config.build(specs, device="meta")
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_trains_in_a_tiny_size(name, tmp_path):
    sizes = {"d_model": 16, "depth": 2, "num_heads": 2, "length": 8}
    training = {"steps": 3, "batch_size": 4, "accumulate": 2, "warmup": 1, "evaluate_every": 3}
    experiment = lm_recipe(name).changed(sizes | training | {"learning_rate": 0.01})
    tokenizer = Characters("abcd")
    file = TokenFile.write(tmp_path / "tokens.bin", ["abcd" * 20, "dcba" * 5], tokenizer)
    config, specs = experiment.configured(tokenizer.vocabulary_size)
    assert (config.d_model, config.depth, config.length) == (16, 2, 8)
    assert [(s.d_model, s.num_heads) for s in specs] == [(16, 2)] * 2
    original = lm_recipe(name).configured(4)
    assert specs[0].position == original[1][0].position
    share = original[0].mlp_width / original[0].d_model
    assert config.mlp_width == int(16 * share)
    torch.manual_seed(0)
    run = fit_lm(config.build(specs), file, file, experiment.training, seed=0)
    assert math.isfinite(run.best.validation_loss)


def test_what_is_set_goes_where_it_belongs():
    experiment = lm_recipe("shakespeare_char").changed(
        {"mechanism": "mistral", "window": 8, "betas": [0.8, 0.9], "dropout": 0.1, "mlp_width": 99}
    )
    config, specs = experiment.configured(30)
    assert experiment.training.betas == (0.8, 0.9)
    assert (config.vocabulary_size, config.dropout, config.mlp_width) == (30, 0.1, 99)
    assert "size=8" in str(specs[0].pattern)
    six = experiment.changed({"configuration": "nanogpt_char", "mechanism": None, "length": 32})
    six = lm_recipe("shakespeare_char").changed({"configuration": "nanogpt_char", "length": 32})
    assert (six.configured(9)[0].depth, six.configured(9)[0].length) == (6, 32)
    assert lm_recipe("stdlib_bpe").vocabulary_size == 2048
    assert lm_recipe("nanogpt_124m").vocabulary_size is None


def test_what_is_unknown_is_refused():
    with pytest.raises(ConfigError, match="'shakespear'"):
        lm_recipe("shakespear")
    with pytest.raises(ConfigError, match="'nanogpt'"):
        lm_recipe("shakespeare_char").changed({"configuration": "nanogpt"}).configured(9)
    with pytest.raises(ConfigError, match="windw"):
        lm_recipe("shakespeare_char").changed({"windw": 3}).configured(9)
    with pytest.raises(ConfigError, match="d_model='wide'"):
        lm_recipe("shakespeare_char").changed({"d_model": "wide"}).configured(9)


@pytest.mark.parametrize("name", ["nanogpt_124m", "llama_1b_efficient"])
def test_a_small_twin_has_15m_parameters_and_trains_for_minutes(name):
    experiment = lm_recipe(name, scale="small")
    vocabulary = experiment.vocabulary_size or 50_257
    config, specs = experiment.configured(vocabulary)
    model = config.build(specs, device="meta")
    assert 14.5e6 < sum(p.numel() for p in model.parameters()) < 15.5e6
    assert (
        experiment.training.steps * experiment.training.batch_size * experiment.training.length
        < 500_000
    )
    assert experiment.training.dtype == "float32"
    large = lm_recipe(name)
    assert (experiment.scale, large.scale) == ("small", "paper")
    assert experiment.title.endswith("; small scale: not the paper's size")
    assert (experiment.configuration, experiment.corpus) == (large.configuration, large.corpus)
    original = large.configured(vocabulary)[1][0]
    assert type(specs[0].encoder) is type(original.encoder)


def test_scales_that_a_language_model_lacks_are_refused():
    message = "recipe stdlib_bpe has one scale only; leave scale='small' out"
    with pytest.raises(ConfigError, match=message):
        lm_recipe("stdlib_bpe", scale="small")
    with pytest.raises(ConfigError, match="unknown scale 'smal'"):
        lm_recipe("nanogpt_124m", scale="smal")
