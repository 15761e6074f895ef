"""Sizes, times and shares are read, and what is none is told."""

from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.records import read_bytes, read_seconds, read_share


def test_sizes_are_read():
    assert read_bytes("80GB") == 80 * 10**9
    assert read_bytes("24 GiB") == 24 * 2**30
    assert read_bytes("512mb") == 512 * 10**6
    assert read_bytes("1000 B") == 1000


@pytest.mark.parametrize("words", ["80 apples", "80", "GB", "0GB", "-3GB"])
def test_other_sizes_are_refused(words):
    with pytest.raises(
        ConfigError, match=r"is no size above 0 with its unit; give such as 80GB or 24GiB"
    ):
        read_bytes(words)


def test_times_are_read():
    assert read_seconds("30ms/token", "token") == pytest.approx(0.03)
    assert read_seconds("1.5 s", "input") == 1.5
    assert read_seconds("20us / input", "input") == pytest.approx(2e-5)


@pytest.mark.parametrize("words", ["30", "30 m", "0ms", "-1s", "30ms/tokens", "30ms/input", "ms"])
def test_other_times_are_refused(words):
    with pytest.raises(ConfigError, match="is no time above 0 of each token; give such as 30ms"):
        read_seconds(words, "token")


def test_shares_are_read():
    assert read_share("1%") == 0.01
    assert read_share(" 0 % ") == 0.0


@pytest.mark.parametrize("words", ["1", "100%", "-1%", "a%", "%"])
def test_other_shares_are_refused(words):
    with pytest.raises(ConfigError, match=r"is no share of accuracy .* give such as 1%"):
        read_share(words)
