"""Requests, and the models they are about."""

from __future__ import annotations

import pytest
from torch import nn

from suffice.choose import Request, base_of
from suffice.choose.candidates import NEW_TOKENS_ROOM, _packed_bytes
from suffice.errors import ConfigError
from suffice.models import LMConfig, TranslatorConfig, folder
from suffice.positions import Rope
from suffice.presets import preset
from suffice.quantise import quantise
from suffice.text import Characters


def test_quantities_are_parsed():
    one = Request(
        task="lm", memory="2GB", latency="30ms/token", quality="1%", mechanisms=["mqa"], results=[]
    )
    assert (one.memory, one.latency, one.quality) == (2 * 10**9, pytest.approx(0.03), 0.01)
    assert (one.mechanisms, one.results) == (("mqa",), ())
    assert one.unit == "token"
    other = Request(task="image", latency="2s/input", memory=5, quality=None)
    assert (other.unit, other.latency, other.memory) == ("input", 2.0, 5)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_weigh_what_they_do_in_a_model(bits):
    linear = nn.Sequential(nn.Linear(512, 512, bias=False))
    assert _packed_bytes(512 * 512, bits) == quantise(linear, bits=bits).bytes_after


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"length": 0}, "length=0"),
        ({"memory": True}, "memory=True"),
        ({"length": 2.0}, "length=2.0"),
        ({"latency": 0.0}, "latency=0.0"),
        ({"minutes": float("nan")}, "minutes=nan"),
        ({"quality": 1.0}, "quality=1.0"),
        ({"model": "15m", "checkpoint": "x"}, "model and checkpoint name two models"),
        ({"task": "image", "checkpoint": "x"}, "task='image'"),
        ({"task": "image", "recall": True}, "recall"),
        ({"task": "clasify"}, "'clasify'; did you mean 'classify'"),
        ({"task": ""}, "lm, classify, image, translate"),
    ],
)
def test_what_is_not_legal_is_refused(fields, named):
    with pytest.raises(ConfigError, match=named):
        Request(**{"task": "lm", **fields})


def test_language_model_has_room_after_the_input():
    base = base_of(Request(task="lm", model="15m", length=100))
    assert isinstance(base.config, LMConfig)
    assert (base.length, base.config.length) == (100, 100 + NEW_TOKENS_ROOM)
    assert (base.num_heads, base.depth, base.writes) == (6, 6, True)
    assert isinstance(base.position, Rope)
    assert base_of(Request(task="lm")).length == 256


def test_readers_have_the_requested_length():
    base = base_of(Request(task="classify", length=100))
    assert (base.length, base.config.length, base.writes) == (100, 100, False)
    translator = base_of(Request(task="translate", length=12))
    assert isinstance(translator.config, TranslatorConfig)
    assert (translator.length, translator.config.length, translator.depth) == (12, 28, 2)
    assert base_of(Request(task="translate")).length == 40


def test_images_are_squares():
    base = base_of(Request(task="image", model="digits_vit", length=25))
    assert (base.config.image_size, base.length) == (10, 25)
    assert base_of(Request(task="image", model="digits_vit")).length == 16
    with pytest.raises(ConfigError, match="length=26"):
        base_of(Request(task="image", model="digits_vit", length=26))


def test_class_token_is_added_to_the_square():
    config = base_of(Request(task="image", model="imagenet_v2"))
    extra = config.length - config.config.num_patches
    if not extra:
        pytest.skip("the recipe has no class token")
    assert base_of(Request(task="image", model="imagenet_v2", length=50)).length == 50
    with pytest.raises(ConfigError, match="squares? of patches and a class token"):
        base_of(Request(task="image", model="imagenet_v2", length=51))


def test_a_checkpoint_gives_its_sizes(tmp_path):
    tokenizer = Characters.of(["abc"])
    config = LMConfig(
        vocabulary_size=tokenizer.vocabulary_size, length=12, d_model=8, depth=1, mlp_width=8
    )
    folder.save(tmp_path, config.build(preset("gqa", 8, 4, causal=True)), tokenizer)
    base = base_of(Request(task="lm", checkpoint=str(tmp_path), length=40))
    assert (base.config.d_model, base.num_heads, base.length) == (8, 4, 40)
    assert base.name == str(tmp_path)
