from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.utils.grammar import (
    BYTES,
    COUNTS,
    SECONDS,
    format_quantity,
    parse_bytes,
    parse_seconds,
    parse_share,
    parse_term,
    split_quantity,
)

MEMORIES = ("dynamic", "static:N", "rolling:W", "rolling:W:SINKS")


@pytest.mark.parametrize("text", ["dynamic", "static:64", "rolling:256", "rolling:256:4"])
def test_terms_are_read_and_written(text):
    assert str(parse_term(f" {text} ", MEMORIES, kind="memory")) == text


def test_an_unknown_name_gets_the_nearest_legal_one():
    with pytest.raises(ConfigError, match="'roling:8'.*'a,roling:8'"):
        parse_term("roling:8", MEMORIES, kind="memory", where="a,roling:8")
    with pytest.raises(ConfigError, match="dynamic, static:N, rolling:W, rolling:W:SINKS"):
        parse_term("", MEMORIES, kind="memory")


@pytest.mark.parametrize(
    "text",
    [
        "rolling",
        "rolling:1:2:3",
        "rolling:x",
        "rolling:-1",
        "rolling:1.5",
        "rolling:\u0661",
        "rolling:" + "9" * 10,
        "rolling:",
    ],
)
def test_numbers_that_no_form_has_are_refused_with_the_forms(text):
    with pytest.raises(ConfigError, match="write rolling:W or rolling:W:SINKS"):
        parse_term(text, MEMORIES, kind="memory")


def test_quantities_are_split():
    assert split_quantity(" 0.5 ms ") == (0.5, "ms")
    assert split_quantity("1e-3") == (1e-3, "")
    assert [split_quantity(text) for text in ("", "ms", "-1s", "1 2", "1s/token")] == [None] * 5


def test_quantities_are_written_in_the_largest_decimal_unit():
    assert format_quantity(1536.0, BYTES) == "1.536kB"
    assert format_quantity(1e-9, SECONDS) == "0.001us"
    assert format_quantity(2e6, COUNTS) == "2M"


def test_sizes_are_read():
    assert parse_bytes("80GB") == 80 * 10**9
    assert parse_bytes("24 GiB") == 24 * 2**30
    assert parse_bytes("512mb") == 512 * 10**6
    assert parse_bytes("1000 B") == 1000


@pytest.mark.parametrize("text", ["80 apples", "80", "GB", "0GB", "-3GB", "1e999GB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ConfigError, match=f"memory '{text}'.*GiB"):
        parse_bytes(text)


def test_times_are_read():
    assert parse_seconds("30ms/token", "token") == pytest.approx(0.03)
    assert parse_seconds("1.5 s", "input") == 1.5
    assert parse_seconds("20us / input", "input") == pytest.approx(2e-5)


@pytest.mark.parametrize(
    "text", ["30", "30 m", "0ms", "-1s", "30ms/tokens", "30ms/input", "30ms/", "ms"]
)
def test_other_times_are_refused(text):
    with pytest.raises(ConfigError, match="latency .* for each token.*30ms"):
        parse_seconds(text, "token")


@pytest.mark.parametrize("text", ["1", "100%", "-1%", "a%", "%"])
def test_other_percentages_are_refused(text):
    with pytest.raises(ConfigError, match="quality .* such as 1%"):
        parse_share(text)
