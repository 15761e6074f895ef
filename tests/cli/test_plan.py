"""`suffice plan` on the command line."""

from __future__ import annotations

import json


def test_a_plan_is_printed(suffice):
    told = suffice("plan", "digits_vit", "--gpu", "l4", "--memory", "1GB", "--examples", 1500)
    assert told.code == 0
    assert "It fits" in told.out
    assert "1.00 GB each" in told.out
    assert "480 steps take" in told.out


def test_data_alone_are_printed(suffice):
    words = ("--heads", 2, "--gpus", 2, "--network", 10, "--reached", 40)
    told = suffice("plan", "mqar", *words, "--mechanism", "efficient", "--json")
    data = json.loads(told.out)
    assert (data["recipe"], data["mechanism"], data["gpus"]) == ("mqar", "efficient", 2)
    assert data["reached"] == 0.4
    assert told.err == ""


def test_mistakes_are_one_sentence(suffice):
    told = suffice("plan", "imbd")
    assert told.code == 2
    assert told.said.startswith("error: unknown recipe 'imbd'; did you mean 'imdb'?")
    assert "memory '80 apples' is no size" in suffice("plan", "imdb", "--memory", "80 apples").said
