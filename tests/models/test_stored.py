"""Sizes as plain data: there and back, and what is refused on the way."""

from __future__ import annotations

import json

import pytest

from suffice.errors import ConfigError
from suffice.models import LMConfig, TranslatorConfig

LM = LMConfig(vocabulary_size=9, length=8, d_model=8, depth=2, mlp_width=8, tied=False)
TRANSLATOR = TranslatorConfig(
    source_vocabulary_size=9, target_vocabulary_size=7, length=8, d_model=8, mlp_width=8
)


@pytest.mark.parametrize("config", [LM, TRANSLATOR], ids=lambda config: type(config).__name__)
def test_there_and_back(config):
    data = json.loads(json.dumps(config.to_json()))
    assert type(config).from_json(data) == config


def test_defaults_may_be_left_out():
    short = {key: v for key, v in LM.to_json().items() if key not in ("tied", "eps", "start")}
    assert LMConfig.from_json(short | {"tied": False}) == LM


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([1], r"LMConfig is stored as a dictionary of its fields, got \[1\]"),
        (LM.to_json() | {"n_layer": 2}, "unknown field of LMConfig 'n_layer'"),
        ({"depth": 2, "d_model": 8, "length": 8}, "needs mlp_width and vocabulary_size"),
        (LM.to_json() | {"depth": 0}, "depth=0: give whole numbers"),
    ],
)
def test_other_data_are_refused(data, told):
    with pytest.raises(ConfigError, match=told):
        LMConfig.from_json(data)
