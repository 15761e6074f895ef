"""Rows of tables and streams: delimiters, names of columns, and lines as they come."""

from __future__ import annotations

import io

import pytest

from suffice.data.rows import find_delimiter, read_rows, read_stream, split_columns
from suffice.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("text,label", ","),
        ("text;label, in words", ";"),
        ("a\tb\tc", "\t"),
        ("a|b|c,d", "|"),
        ('"x;y;z",label', ","),
        ("text", ","),
    ],
)
def test_the_delimiter_is_what_separates_the_names(header, delimiter):
    assert find_delimiter(header) == delimiter


def test_a_name_with_commas_needs_no_quotes_where_it_is_there():
    assert split_columns("a,b,c", ["a", "b,c"]) == ("a", "b,c")
    assert split_columns("a,b,c", ["a,b", "c"]) == ("a,b", "c")
    assert split_columns("a,b,c", ["x"]) is None


def test_values_of_json_stay_as_they_are(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1, "tags": ["a"]}\n\n{"n": NaN}\n')
    names, rows = read_rows(str(path))
    assert names == ["n", "tags"]
    assert list(rows) == [(1, {"n": 1, "tags": ["a"]}), (3, {"n": None})]


def test_a_stream_is_read_line_by_line():
    def stream(text):
        return io.BytesIO(text.encode())

    names, rows = read_stream(stream("good\n\nbad, too\n"), "text")
    assert names == ["text"]
    assert [row["text"] for _, row in rows] == ["good", "", "bad, too"]
    names, rows = read_stream(stream('a,b\n"x\ny",2\n'), "csv")
    assert [row for _, row in rows] == [{"a": "x\ny", "b": "2"}]
    _, rows = read_stream(stream('{"a": 1}\n{"a"'), "jsonl")
    with pytest.raises(DataError, match="line 2"):
        list(rows)
    with pytest.raises(ConfigError, match="--as xml: give csv, jsonl or text"):
        read_stream(stream(""), "xml")
