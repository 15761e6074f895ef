from __future__ import annotations

import hashlib
import json
import lzma
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from suffice.errors import ConfigError, DataError
from suffice.text import CORPORA, corpus
from suffice.text.corpus import C4, OPENWEBTEXT, SHAKESPEARE, TEST, VALIDATION
from suffice.text.documents import held_out

corpus_module = sys.modules[corpus.__module__]  # the package has the function of its name


def put(root: Path, path: str, content: bytes) -> None:
    at = root / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(lzma.compress(content) if path.endswith(".xz") else content)


@pytest.fixture
def mine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with small files in the place of the real ones."""
    root = tmp_path / "mine"
    for name, file, content in (
        ("SHAKESPEARE", SHAKESPEARE, b"To be, or not to be."),
        ("OPENWEBTEXT", OPENWEBTEXT, pages("page")),
        ("C4", C4, pages("site")),
        ("VALIDATION", VALIDATION, article("One") + article("Two")),
        ("TEST", TEST, article("Three")),
    ):
        put(root, file.path, content)
        known = replace(file, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(corpus_module, name, known)
    monkeypatch.setenv("SUFFICE_DATA", str(root))
    return root


def pages(word: str) -> bytes:
    return "".join(json.dumps({"text": f"{word} {n}"}) + "\n" for n in range(50)).encode()


def article(title: str) -> bytes:
    return f" \n = {title} = \n \n text \n \n = = Part = = \n \n = x = \n more \n".encode()


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_every_corpus_has_its_parts_and_can_be_read_again(mine: Path, name: str):
    put(mine, "lm/wikitext2/wiki.train.txt", article("Four"))
    result = corpus(name)
    assert result.name == name
    assert result.source
    parts = [result.train, result.validation, *([result.test] if result.test else [])]
    for part in parts:
        texts = list(part)
        assert all(texts)
        assert texts == list(part)
    if name != "wikitext2":
        assert not set(result.train) & set(result.validation)


@pytest.mark.parametrize(("name", "word"), [("openwebtext_sample", "page"), ("c4_sample", "site")])
def test_a_sample_is_held_out_by_text(mine: Path, name: str, word: str):
    result = corpus(name)
    every = [f"{word} {number}" for number in range(50)]
    assert list(result.train) == [text for text in every if not held_out(text)]
    assert list(result.validation) == [text for text in every if held_out(text)]


def test_the_articles_of_wikitext_are_its_documents(mine: Path):
    result = corpus("wikitext2")
    assert list(result.validation) == [
        article("One").decode() + " \n",
        article("Two").decode()[2:],
    ]
    assert "".join(result.test) == article("Three").decode()


@pytest.mark.parametrize("name", ["wiki.train.txt", "wiki.train.txt.xz"])
def test_the_training_part_of_wikitext_is_read_where_it_is(mine: Path, name: str):
    train = corpus("wikitext2").train
    with pytest.raises(DataError, match="wikitext2 has no training part on this machine"):
        list(train)
    put(mine, f"lm/wikitext2/{name}", article("Four"))
    assert list(train) == [article("Four").decode()]


@pytest.mark.parametrize("name", sorted(set(CORPORA) - {"stdlib"}))
def test_an_absent_set_says_what_to_put_where(home: Path, name: str):
    with pytest.raises(DataError, match=rf"lm/{name}/.* was found neither below SUFFICE_DATA"):
        corpus(name)


def test_a_folder_of_the_users_own_has_a_name_too(mine: Path, home: Path):
    put(mine, "lm/letters/a.txt", b"Dear friend, well met")
    put(home, "lm/diary/a.txt", b"Today it rained a lot")
    assert list(corpus("letters").validation) == ["met"]
    assert list(corpus("diary").validation) == ["lot"]


def test_a_name_comes_before_a_path(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, "c4_sample/a.txt", b"mine, and not theirs")
    monkeypatch.chdir(tmp_path)
    assert corpus("c4_sample").name == "c4_sample"
    assert list(corpus(Path("c4_sample")).validation) == ["rs"]
    assert list(corpus("./c4_sample").validation) == ["rs"]


def test_an_unknown_name_is_refused_with_the_nearest(home: Path):
    with pytest.raises(ConfigError, match="unknown corpus 'stdlip'"):
        corpus("stdlip")


@pytest.mark.parametrize(
    "path", [Path("nowhere"), "no/where", "a.txt", "../absent", "a" * 5000 + "/"]
)
def test_an_absent_path_is_refused(home: Path, path: str | Path):
    with pytest.raises(DataError, match="there is no corpus at .*"):
        corpus(path)


def test_stdlib_is_the_running_pythons_library():
    result = corpus("stdlib")
    root = Path(sysconfig.get_path("stdlib"))
    texts = [*result.train, *result.validation]
    assert (root / "json" / "decoder.py").read_text(encoding="utf-8") in texts
    assert "Python 3." in result.source
    assert 0.05 < result.validation.count / (result.train.count + result.validation.count) < 0.2


def test_stdlib_takes_neither_tests_nor_what_is_installed(monkeypatch, tmp_path: Path):
    for name in (
        "b.py",
        "a/c.py",
        "test/d.py",
        "a/tests/e.py",
        "site-packages/f.py",
        "_sysconfigdata__x.py",
        "note.txt",
    ):
        put(tmp_path, name, f"# {name}".encode())
    validation_name = "a/c.py" if held_out("a/c.py") else "b.py"
    put(tmp_path, "again.py", (tmp_path / validation_name).read_bytes())
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    result = corpus("stdlib")
    assert sorted([*result.train, *result.validation]) == ["# a/c.py", "# b.py"]


@pytest.mark.parametrize("place", [".", "python.zip"])
def test_a_python_without_sources_is_refused(monkeypatch, tmp_path: Path, place: str):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / place))
    with pytest.raises(DataError, match="this Python has no sources of its standard library"):
        corpus("stdlib")


def test_the_real_sets_are_read(options: Path):
    wikitext = corpus("wikitext2")
    assert (len(list(wikitext.validation)), len(list(wikitext.test))) == (60, 60)
    c4 = corpus("c4_sample")
    assert len([*c4.train, *c4.validation]) == 1000
