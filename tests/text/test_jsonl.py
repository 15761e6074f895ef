from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import documents as plain
from suffice.text.documents import is_jsonl, rows, texts

LINES = b'{"text": "caf\\u00e9\\n\xe2\x80\xa8"}\n\n  \r\n{"id": 7, "text": ""}\r\n{"text": "last"}'


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.xz", lzma.compress)])
def test_each_line_is_a_document(tmp_path: Path, name: str, pack):
    (tmp_path / name).write_bytes(pack(LINES))
    assert is_jsonl(tmp_path / name)
    assert list(rows(tmp_path / name)) == ["caf\u00e9\n\u2028", "", "last"]


def test_a_file_is_read_as_a_stream(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n' + b"broken\n" * 10)
    documents = rows(tmp_path / "a.jsonl")
    assert next(documents) == "first"
    with pytest.raises(DataError, match=r"a\.jsonl, line 2, is not a document \(Expecting value"):
        next(documents)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"n": ' + b"1" * 5000 + b"}",
    ],
    ids=["cut", "not-utf8", "half-pair", "deep", "huge-number"],
)
def test_a_line_that_is_not_json_is_told(line: bytes):
    with pytest.raises(DataError, match=r'my file, line 1, is not a document \(.*under "text"\.'):
        list(texts([line], "my file"))


@pytest.mark.parametrize("line", [b"[]", b"7", b"null", b"{}", b'{"text": 7}', b'{"text": null}'])
def test_a_line_without_a_text_is_told(line: bytes):
    with pytest.raises(DataError, match="my file, line 2, is not a document; a line is a JSON obj"):
        list(texts([b'{"text": "a"}', line], "my file"))


def test_a_line_too_long_is_refused_before_it_is_held(tmp_path: Path, monkeypatch):
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(b'{"text": "%s"}' % (b" " * 1000)))
    monkeypatch.setattr(plain, "LONGEST", 500)
    with pytest.raises(DataError, match=r"line 1, is longer than 500 bytes; cut the document"):
        list(rows(tmp_path / "a.jsonl.xz"))


def test_an_archive_cut_short_is_told_after_what_is_whole(tmp_path: Path):
    lines = b"".join(b'{"text": "%d"}\n' % number for number in range(20_000))
    whole = lzma.compress(lines)
    (tmp_path / "a.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    documents = rows(tmp_path / "a.jsonl.xz")
    assert next(documents) == "0"
    with pytest.raises(DataError, match=r"a\.jsonl\.xz is truncated or damaged \(Compressed file"):
        list(documents)


def test_other_names_are_not_lines_of_json():
    assert not is_jsonl(Path("a.json"))
    assert not is_jsonl(Path("jsonl.txt"))
