"""What cannot be meant is refused in a sentence: texts, numbers cut to whole ones, classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from suffice.errors import ConfigError
from suffice.generate import Greedy, Sample, generate
from suffice.generate.generate import room
from suffice.memory import Dynamic, Static
from suffice.positions import Rope
from suffice.presets import preset

from .models import SPEC, model


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ("abc", r"a prompt is 'a'; give a list of prompts, each the ids of a tokenizer"),
        ([1, 2], r"a prompt is 1; give a list of prompts"),
        ([[[1]]], r"a prompt is \[\[1\]\]; give a list"),
        ([[1.5, 2.0]], r"a prompt has dtype torch.float32; ids are integers"),
        ([[True]], r"a prompt has dtype torch.bool; ids are integers"),
    ],
)
def test_prompts_are_ids(tokens, told):
    with pytest.raises(ConfigError, match=told):
        generate(model(), tokens, max_new_tokens=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_new_tokens": 2.0}, r"max_new_tokens=2.0 is not a whole number"),
        ({"max_new_tokens": True}, r"max_new_tokens=True is not a whole number"),
        ({"beams": True}, r"beams=True is not a whole number"),
        ({"sampling": "greedy"}, r"sampling='greedy': give Greedy\(\) or Sample\(...\)"),
        ({"memory": "dynamic"}, r"memory='dynamic' is no memory; give an instance"),
        ({"stop": 2}, r"stop=2: give the ids that end a row as a sequence"),
        ({"stop": "x"}, r"stop='x': give the ids that end a row as a sequence"),
        ({"stop": (True,)}, r"True is no id; give 0 to 22"),
    ],
)
def test_options_are_of_their_kind(options, told):
    with pytest.raises(ConfigError, match=told):
        generate(model(), [[1]], **{"max_new_tokens": 1, **options})


def test_a_model_is_asked_for():
    with pytest.raises(ConfigError, match=r"lm='runs/char' is a str, no language model; give what"):
        generate("runs/char", [[1]], max_new_tokens=1)


def test_ids_of_numpy_and_of_torch_are_ids():
    wanted = generate(model(), [[1, 2]], max_new_tokens=2).tokens
    for given in (np.array([[1, 2]]), [torch.tensor([1, 2])], [np.array([1, 2], "uint8")]):
        assert torch.equal(generate(model(), given, max_new_tokens=2).tokens, wanted)


@pytest.mark.parametrize("field", [{"temperature": "1"}, {"top_k": True}, {"seed": 1.5}])
def test_samplings_hold_numbers(field):
    with pytest.raises(ConfigError, match=rf"Sample: {next(iter(field))}=.* is not a"):
        Sample(**field)
    with pytest.raises(ConfigError, match="Greedy: repetition_penalty='1' is not a finite number"):
        Greedy(repetition_penalty="1")


def test_room_is_what_can_be_written():
    assert room(model(), Dynamic(), 60) == 5
    assert room(model(), Static(9), 4) == 6
    assert room(model(), Dynamic(), 99) == 0
    turning = model(positions="none")
    assert turning.specs[0].position == Rope()
    assert room(turning, Dynamic(), 60) is None
    aligned = preset("super_attention", SPEC.d_model, 4, length=64, causal=True)
    assert room(model(aligned, positions="none"), Dynamic(), 60) == 5
    for prompt, lm in ((60, model()), (60, model(aligned, positions="none"))):
        end = room(lm, Dynamic(), prompt)
        row = [list(range(20)) * 3]
        assert len(generate(lm, row, max_new_tokens=end).row(0)) == 65
        with pytest.raises(ConfigError, match="need 65 positions"):
            generate(lm, row, max_new_tokens=end + 1)


def test_whole_numbers_of_numpy_are_whole_numbers():
    new, stop = np.int64(3), (np.int32(2),)
    found = generate(model(), np.array([[1, 2]]), max_new_tokens=new, stop=stop)
    assert torch.equal(
        found.tokens, generate(model(), [[1, 2]], max_new_tokens=3, stop=(2,)).tokens
    )
