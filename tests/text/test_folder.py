from __future__ import annotations

import json
import lzma
import os
from operator import length_hint
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import corpus
from suffice.text.documents import Documents, files_below, first_held_out, held_out, split


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def lines(count: int) -> str:
    return "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(count))


def test_about_a_tenth_is_held_out_by_key_alone():
    held = [f"document {number}" for number in range(5000) if held_out(f"document {number}")]
    assert 430 < len(held) < 570
    assert held[:3] == ["document 21", "document 22", "document 51"]


def test_one_of_several_is_held_out_at_least():
    few = ["one.txt", "two.txt", "three.txt"]
    assert not any(map(held_out, few))
    kept, held = split(few)
    assert held == [first_held_out(few)]
    assert sorted(kept + held) == sorted(few)
    assert split(few, at_least_one=False) == (few, [])
    assert split(["one.txt"]) == (["one.txt"], [])


def test_one_of_several_is_kept_at_least():
    names = [name for name in (f"document {number}" for number in range(99)) if held_out(name)]
    kept, held = split(names)
    assert held == [first_held_out(names)]
    assert kept == [name for name in names if name not in held]


def test_one_text_is_cut_at_nine_tenths(tmp_path: Path):
    put(tmp_path, {"a.txt": "0123456789abcdefghi"})
    for path in (tmp_path / "a.txt", tmp_path, str(tmp_path)):
        found = corpus(path)
        assert list(found.train) == ["0123456789abcdefg"]
        assert list(found.validation) == ["hi"]
        assert found.test is None
        assert length_hint(found.train) == 1


def test_each_file_of_a_folder_is_a_document(tmp_path: Path):
    files = {f"part/{number}.md": f"text {number}" for number in range(40)}
    put(tmp_path, {**files, ".hidden": "no", ".git/x": "no", "empty": ""})
    (tmp_path / "packed.xz").write_bytes(lzma.compress(b"packed text"))
    found = corpus(tmp_path)
    train, validation = list(found.train), list(found.validation)
    assert train == list(found.train)
    assert sorted(train + validation) == sorted([*files.values(), "packed text"])
    assert {text for name, text in files.items() if held_out(name)} <= set(validation)
    assert length_hint(found.train) + length_hint(found.validation) == 42
    assert str(tmp_path) in found.source


def test_lines_of_json_are_held_out_by_text(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(60)})
    found = corpus(tmp_path / "a.jsonl")
    train, validation = list(found.train), list(found.validation)
    assert all(map(held_out, validation))
    assert len(validation) > 2
    assert sorted(train + validation) == sorted(f"document {n}" for n in range(60))
    assert list(corpus(tmp_path).train) == train
    assert length_hint(found.train) == 0


def test_what_is_held_out_under_one_name_is_not_learnt_under_another(tmp_path: Path):
    names = [f"{number}.txt" for number in range(40)]
    held = next(filter(held_out, names))
    kept = [name for name in names if not held_out(name)]
    files = {name: f"text {name}" for name in names}
    put(tmp_path, {**files, kept[3]: files[held], "z.jsonl": json.dumps({"text": files[held]})})
    found = corpus(tmp_path)
    assert sorted(found.train) == sorted(files[name] for name in kept if name != kept[3])
    assert files[held] in list(found.validation)


def test_a_folder_may_hold_both(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(60), "b.txt": "a whole text", "c/d.jsonl": lines(3)})
    found = corpus(tmp_path)
    together = [*found.train, *found.validation]
    assert len(together) == 64
    assert set(map(held_out, found.validation)) == {True}


def test_a_part_without_a_document_is_told_at_the_end_of_the_pass(tmp_path: Path):
    put(tmp_path, {"a.jsonl": lines(1)})
    found = corpus(tmp_path / "a.jsonl")
    assert list(found.train) == ["document 0"]
    with pytest.raises(DataError, match=r"a\.jsonl, validation holds no text; give a corpus of mo"):
        list(found.validation)


def test_documents_show_their_name_and_pass_over_empty_texts():
    documents = Documents(name="mine", read=lambda: iter(["", "a", ""]), count=3)
    assert list(documents) == list(documents) == ["a"]
    assert repr(documents) == "Documents(name='mine', count=3)"


def test_an_empty_folder_is_told(tmp_path: Path):
    put(tmp_path, {".hidden": "x"})
    with pytest.raises(DataError, match="is a folder without a file; put text into it"):
        corpus(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path):
    put(tmp_path, {"a.txt": "a", "b.txt": "b"})
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(DataError, match=r"c\.png is not UTF-8 text"):
        [*corpus(tmp_path).train, *corpus(tmp_path).validation]
    with pytest.raises(DataError, match=r"c\.png is not UTF-8 text"):
        corpus(tmp_path / "c.png")


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def walk(root, onerror):
        onerror(PermissionError(13, "Permission denied", str(root)))

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); check its rights"):
        files_below(tmp_path)


def test_links_to_folders_are_not_followed(tmp_path: Path):
    put(tmp_path, {"here/a.txt": "a"})
    (tmp_path / "here" / "loop").symlink_to(tmp_path)
    assert files_below(tmp_path / "here") == ["a.txt"]
