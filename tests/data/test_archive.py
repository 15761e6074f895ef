from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from suffice.data.files import convert, record
from suffice.errors import DataError

REVIEWS = {
    "aclImdb/train/pos/10_9.txt": "good, <br />\u2028 caf\u00e9",
    "aclImdb/train/pos/2_7.txt": "fine",
    "aclImdb/train/neg/11_1.txt": "bad",
    "aclImdb/test/neg/0_10.txt": "worse\nstill",
}


def packed(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)
    return buffer.getvalue()


def member(name: str, form: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = form, target
    return info


def rows(at: Path) -> list[dict]:
    return [json.loads(line) for line in lzma.open(at)]


def test_reviews_become_rows_sorted_by_label_and_id(tmp_path: Path):
    convert(packed({name: text.encode() for name, text in REVIEWS.items()}), tmp_path)
    assert rows(tmp_path / "train.jsonl.xz") == [
        {"id": 11, "label": 0, "rating": 1, "text": "bad"},
        {"id": 2, "label": 1, "rating": 7, "text": "fine"},
        {"id": 10, "label": 1, "rating": 9, "text": "good, <br />\u2028 caf\u00e9"},
    ]
    assert rows(tmp_path / "test.jsonl.xz") == [
        {"id": 0, "label": 0, "rating": 10, "text": "worse\nstill"}
    ]


def test_the_sha256_of_each_content_is_recorded(tmp_path: Path):
    convert(packed({name: text.encode() for name, text in REVIEWS.items()}), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("train.jsonl.xz", "test.jsonl.xz"),
        *("train.jsonl.xz.sha256", "test.jsonl.xz.sha256"),
    }
    for part in ("train", "test"):
        at = tmp_path / f"{part}.jsonl.xz"
        digest = hashlib.sha256(lzma.decompress(at.read_bytes())).hexdigest()
        assert record(at).read_text() == f"{digest}\n"


def test_all_other_members_are_passed_over(tmp_path: Path):
    strange = [
        "../../aclImdb/train/pos/1_9.txt",
        "/aclImdb/train/pos/1_9.txt",
        "aclImdb/train/pos/../1_9.txt",
        "aclImdb/train/pos/1_9.txt.exe",
        "aclImdb/train/pos/1_9.txt\n",
        "aclImdb/train/unsup/1_0.txt",
        "aclImdb/train/urls_pos.txt",
        "aclImdb/train/pos/123456_9.txt",
    ]
    archive = packed(
        dict.fromkeys(strange, b"evil") | {"aclImdb/test/pos/3_8.txt": b"kept"},
        member("aclImdb/train/pos/4_9.txt", tarfile.SYMTYPE, "aclImdb/test/pos/3_8.txt"),
        member("aclImdb/train/pos/5_9.txt", tarfile.LNKTYPE, "aclImdb/test/pos/3_8.txt"),
        member("aclImdb/train/pos/6_9.txt", tarfile.DIRTYPE),
        member("aclImdb/train/pos/7_9.txt", tarfile.CHRTYPE),
    )
    inside = tmp_path / "a" / "b"
    convert(archive, inside)
    assert rows(inside / "train.jsonl.xz") == []
    assert [row["text"] for row in rows(inside / "test.jsonl.xz")] == ["kept"]
    assert sorted(path.name for path in tmp_path.rglob("*.txt")) == []


@pytest.mark.parametrize(
    "archive",
    [
        b"plainly no archive",
        packed({name: text.encode() * 999 for name, text in REVIEWS.items()})[:150],
        packed({"aclImdb/train/pos/1_9.txt": b"\xff\xfe not UTF-8"}),
        b"",
    ],
    ids=["text", "cut", "latin", "empty"],
)
def test_a_damaged_archive_is_refused_and_writes_nothing(tmp_path: Path, archive: bytes):
    with pytest.raises(DataError, match="archive of IMDB reviews is truncated or damaged"):
        convert(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []
