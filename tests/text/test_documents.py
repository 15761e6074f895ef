from __future__ import annotations

import json
import lzma
import os
from operator import length_hint
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import corpus, documents
from suffice.text import documents as plain
from suffice.text.documents import (
    files_below,
    held_out,
    parse_jsonl,
    read_jsonl,
    read_text,
    split,
)

# folder


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def lines(count: int) -> str:
    return "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(count))


def test_about_a_tenth_is_held_out_by_key_alone():
    validation_names = [
        f"document {number}" for number in range(5000) if held_out(f"document {number}")
    ]
    assert 430 < len(validation_names) < 570
    assert validation_names[:3] == ["document 21", "document 22", "document 51"]


def test_one_of_several_is_held_out_at_least():
    few = ["one.txt", "two.txt", "three.txt"]
    assert not any(map(held_out, few))
    train_names, validation_names = split(few)
    assert len(validation_names) == 1
    assert sorted(train_names + validation_names) == sorted(few)
    assert split(few, at_least_one=False) == (few, [])
    assert split(["one.txt"]) == (["one.txt"], [])


def test_one_text_is_cut_at_nine_tenths(tmp_path: Path):
    put(tmp_path, {"a.txt": "0123456789abcdefghi"})
    for path in (tmp_path / "a.txt", tmp_path, str(tmp_path)):
        result = corpus(path)
        assert list(result.train) == ["0123456789abcdefg"]
        assert list(result.validation) == ["hi"]
        assert result.test is None
        assert length_hint(result.train) == 1


def test_each_file_of_a_folder_is_a_document(tmp_path: Path):
    files = {f"part/{number}.md": f"text {number}" for number in range(40)}
    put(tmp_path, {**files, ".hidden": "no", ".git/x": "no", "empty": ""})
    (tmp_path / "packed.xz").write_bytes(lzma.compress(b"packed text"))
    result = corpus(tmp_path)
    train, validation = list(result.train), list(result.validation)
    assert train == list(result.train)
    assert sorted(train + validation) == sorted([*files.values(), "packed text"])
    assert {text for name, text in files.items() if held_out(name)} <= set(validation)
    assert length_hint(result.train) + length_hint(result.validation) == 42
    assert str(tmp_path) in result.source


def test_lines_of_json_are_held_out_by_text(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(60)})
    result = corpus(tmp_path / "a.jsonl")
    train, validation = list(result.train), list(result.validation)
    assert all(map(held_out, validation))
    assert len(validation) > 2
    assert sorted(train + validation) == sorted(f"document {n}" for n in range(60))
    assert list(corpus(tmp_path).train) == train
    assert length_hint(result.train) == 0


def test_what_is_held_out_under_one_name_is_not_learnt_under_another(tmp_path: Path):
    names = [f"{number}.txt" for number in range(40)]
    validation_names = next(filter(held_out, names))
    train_names = [name for name in names if not held_out(name)]
    files = {name: f"text {name}" for name in names}
    put(
        tmp_path,
        {
            **files,
            train_names[3]: files[validation_names],
            "z.jsonl": json.dumps({"text": files[validation_names]}),
        },
    )
    result = corpus(tmp_path)
    assert sorted(result.train) == sorted(
        files[name] for name in train_names if name != train_names[3]
    )
    assert files[validation_names] in list(result.validation)


def test_a_folder_may_hold_both(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(60), "b.txt": "a whole text", "c/d.jsonl": lines(3)})
    result = corpus(tmp_path)
    together = [*result.train, *result.validation]
    assert len(together) == 64
    assert set(map(held_out, result.validation)) == {True}


def test_a_part_without_a_document_is_refused_at_the_end_of_the_pass(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(1)})
    result = corpus(tmp_path / "a.jsonl")
    assert list(result.train) == ["document 0"]
    with pytest.raises(DataError, match=r"a\.jsonl"):
        list(result.validation)


def test_an_empty_folder_is_refused(tmp_path: Path):
    put(tmp_path, {".hidden": "x"})
    with pytest.raises(DataError, match="is a folder without a file"):
        corpus(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path):
    put(tmp_path, {"a.txt": "a", "b.txt": "b"})
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(DataError, match=r"c\.png is not UTF-8 text"):
        [*corpus(tmp_path).train, *corpus(tmp_path).validation]
    with pytest.raises(DataError, match=r"c\.png is not UTF-8 text"):
        corpus(tmp_path / "c.png")


def test_links_to_folders_are_not_followed(tmp_path: Path):
    put(tmp_path, {"here/a.txt": "a"})
    (tmp_path / "here" / "loop").symlink_to(tmp_path)
    assert files_below(tmp_path / "here") == ["a.txt"]


# jsonl

LINES = b'{"text": "caf\\u00e9\\n\xe2\x80\xa8"}\n\n  \r\n{"id": 7, "text": ""}\r\n{"text": "last"}'


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.xz", lzma.compress)])
def test_each_line_is_a_document(tmp_path: Path, name: str, pack):
    (tmp_path / name).write_bytes(pack(LINES))
    assert list(read_jsonl(tmp_path / name)) == ["caf\u00e9\n\u2028", "", "last"]


def test_a_file_is_read_as_a_stream(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n' + b"broken\n" * 10)
    documents = read_jsonl(tmp_path / "a.jsonl")
    assert next(documents) == "first"
    with pytest.raises(DataError, match=r"a\.jsonl.*line 2"):
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
def test_a_line_that_is_not_json_is_refused(line: bytes):
    with pytest.raises(DataError, match="line 1"):
        list(parse_jsonl([line], "my file"))


@pytest.mark.parametrize("line", [b"[]", b"7", b"null", b"{}", b'{"text": 7}', b'{"text": null}'])
def test_a_line_without_a_text_is_refused(line: bytes):
    with pytest.raises(DataError, match="line 2"):
        list(parse_jsonl([b'{"text": "a"}', line], "my file"))


def test_a_line_too_long_is_refused_before_it_is_held(tmp_path: Path, monkeypatch):
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(b'{"text": "%s"}' % (b" " * 1000)))
    monkeypatch.setattr(plain, "MAX_TEXT_BYTES", 500)
    with pytest.raises(DataError, match="line 1.*500 bytes"):
        list(read_jsonl(tmp_path / "a.jsonl.xz"))


def test_an_archive_cut_short_is_refused_after_its_complete_part(tmp_path: Path):
    lines = b"".join(b'{"text": "%d"}\n' % number for number in range(20_000))
    complete = lzma.compress(lines)
    (tmp_path / "a.jsonl.xz").write_bytes(complete[: len(complete) // 2])
    documents = read_jsonl(tmp_path / "a.jsonl.xz")
    assert next(documents) == "0"
    with pytest.raises(DataError, match=r"a\.jsonl\.xz"):
        list(documents)


# plain

TEXT = "caf\u00e9\r\n\u2028 end"


@pytest.mark.parametrize("front", [b"", b"\xef\xbb\xbf"], ids=["bare", "marked"])
@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.txt.xz", lzma.compress)])
def test_a_text_is_read_as_it_is(tmp_path: Path, name: str, pack, front: bytes):
    (tmp_path / name).write_bytes(pack(front + TEXT.encode()))
    assert read_text(tmp_path / name) == TEXT


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"ab\xff", r"a\.txt is not UTF-8 text \(invalid start byte, byte 2\); convert it"),
        ("ab".encode("utf-16"), r"a\.txt is not|zero bytes"),
        ("ab".encode("utf-16-le"), r"a\.txt is not text \(it holds zero bytes\); convert it"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, sentence: str):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.txt.xz", lzma.compress)])
def test_a_text_too_long_is_refused_before_it_is_held(tmp_path: Path, monkeypatch, name: str, pack):
    (tmp_path / name).write_bytes(pack(b"0123456789"))
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 10)
    assert read_text(tmp_path / name) == "0123456789"
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 9)
    with pytest.raises(DataError, match="9 bytes"):
        read_text(tmp_path / name)


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b"plainly not xz", lambda _: b""])
def test_a_damaged_archive_is_refused(tmp_path: Path, damage):
    (tmp_path / "a.txt.xz").write_bytes(damage(lzma.compress(TEXT.encode())))
    with pytest.raises(DataError, match=r"a\.txt\.xz"):
        read_text(tmp_path / "a.txt.xz")


def test_absent_files_folders_and_pipes_are_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(DataError, match="is not a regular file"):
            read_text(tmp_path / name)
    with pytest.raises(DataError, match="absent does not exist"):
        read_text(tmp_path / "absent")
