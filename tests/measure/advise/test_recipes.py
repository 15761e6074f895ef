"""Known recipes: their compositions are legal, and claims stand beside measurements."""

from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.measure.advise import RECIPES, advise, base_of, recipe_named
from suffice.measure.advise.request import candidates

from .worlds import World


@pytest.mark.parametrize("name", RECIPES)
def test_every_composition_is_legal_at_its_own_sizes(name):
    request = RECIPES[name].request({})
    assert RECIPES[name].name == name
    legal, illegal = candidates(base_of(request), request.mechanisms)
    assert illegal == {}
    assert len(legal) > 1


@pytest.mark.parametrize("name", ["tiny-edge", "hybrid-linear"])
def test_report_shows_claim_and_measurement(name):
    one = recipe_named(name)
    request = one.request({"length": 128, "model": "llama_15m", "minutes": 10.0})
    assert (request.length, request.model) == (128, "llama_15m")
    world = World({request.mechanisms[0]: 0.5})
    advice = advise(request, clock=world.clock, measure=world.measure, step=lambda *_: 0.06)
    sentences = list(one.report(advice))
    assert sentences[0] == f"The source: {one.says}"
    assert "x Standard's state" in sentences[1]
    assert sentences[2].startswith("Here, measured: 500 ms a token, 0.50x Standard's")
    assert sentences[3].startswith("Its quality: no near comparison")
    assert advice.winner == "standard"
    assert f"{request.mechanisms[0]} takes 0.50x Standard's time" in advice.sentence


def test_a_quarter_of_the_heads_keeps_a_quarter_of_the_state():
    one = recipe_named("tiny-edge")
    request = one.request({"length": 64, "model": "gpt2_124m"})
    assert request.mechanisms[0] == "standard+kv:3"
    world = World({})
    sentences = list(
        one.report(advise(request, clock=world.clock, measure=world.measure, step=lambda *_: 0.06))
    )
    assert sentences[1] == "Here, in closed form: standard+kv:3 keeps 0.25x Standard's state."


def test_kv_heads_divide_the_heads():
    request = recipe_named("tiny-edge").request({"model": "llama_15m", "length": 32})
    assert request.mechanisms == ("standard+kv:1", "standard+kv:1")


def test_hybrids_fit_the_heads_of_the_model():
    one = recipe_named("hybrid-linear")
    request = one.request({"model": "nanogpt_char_cpu", "length": 64})
    assert request.mechanisms[0] == "linear+kv:1+softmax:4"
    world = World({})
    advice = advise(request, clock=world.clock, measure=world.measure, step=lambda *_: 0.06)
    assert advice.find(request.mechanisms[0]).status == "measured"
    base = one.request({"model": "efficient_1b", "length": 64})
    assert base.mechanisms[0] == "linear+kv:1+softmax:4"


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ConfigError, match="'tiny'"):
        recipe_named("tiny")


def test_checkpoint_replaces_the_model():
    with pytest.raises(Exception, match="no such folder: absent"):
        recipe_named("tiny-edge").request({"checkpoint": "absent"})


def test_three_linear_layers_to_one_are_asked_for_long_texts():
    assert RECIPES["hybrid-linear"].request({}).length == 4096
    assert RECIPES["tiny-edge"].request({"length": 64}).length == 64
