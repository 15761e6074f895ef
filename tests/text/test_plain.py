from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import documents
from suffice.text.documents import opened, read_text

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
    monkeypatch.setattr(documents, "LONGEST", 10)
    assert read_text(tmp_path / name) == "0123456789"
    monkeypatch.setattr(documents, "LONGEST", 9)
    with pytest.raises(DataError, match="holds more than 9 bytes in one text; split it into sever"):
        read_text(tmp_path / name)


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b"plainly not xz", lambda _: b""])
def test_a_damaged_archive_is_told(tmp_path: Path, damage):
    (tmp_path / "a.txt.xz").write_bytes(damage(lzma.compress(TEXT.encode())))
    with pytest.raises(DataError, match=r"a\.txt\.xz is truncated or damaged \(.*complete copy"):
        read_text(tmp_path / "a.txt.xz")


def test_absent_files_folders_and_pipes_are_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(DataError, match="is not a regular file; give a file of text"):
            read_text(tmp_path / name)
    with pytest.raises(DataError, match="absent does not exist; give a file of text"):
        read_text(tmp_path / "absent")


def test_a_disk_that_fails_is_told(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    with (
        pytest.raises(DataError, match=r"a\.txt cannot be read \(Input/output error\); check the"),
        opened(tmp_path / "a.txt"),
    ):
        raise OSError(5, "Input/output error")
