"""`suffice plan` on the command line."""

from __future__ import annotations

import json


def test_data_alone_are_printed(suffice):
    words = ("--heads", 2, "--gpus", 2, "--network", 10, "--reached", 40)
    result = suffice("plan", "mqar", *words, "--mechanism", "efficient", "--json")
    data = json.loads(result.stdout)
    assert (data["recipe"], data["mechanism"], data["gpus"]) == ("mqar", "efficient", 2)
    assert data["reached"] == 0.4
    assert result.stderr == ""


def test_figures_of_the_users_own_are_counted_with(suffice):
    words = ("--flops", 50, "--bandwidth", 200, "--json")
    data = json.loads(suffice("plan", "mqar", "--gpu", "l4", *words).stdout)
    assert data["gpu"]["flops"]["bfloat16"] == 50e12
    assert data["gpu"]["bandwidth"] == 200e9
    assert data["gpu"]["source"].startswith("flops and bandwidth of your own")
    assert "flops=0; give a number above 0" in suffice("plan", "mqar", "--flops", 0).message
