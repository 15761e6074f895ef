from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from suffice.errors import ConfigError, DataError
from suffice.text import Characters, corpus, load_tokenizer

TEXT = "h\u00e9llo \r\n\x85\u2028 \U0001f600 <none>"


def test_ids_follow_the_code_points():
    tokenizer = Characters.of("cab")
    assert tokenizer.characters == "abc"
    assert tokenizer.encode("bac") == [1, 0, 2]
    assert tokenizer.vocabulary_size == 3
    assert tokenizer.begin is None
    assert tokenizer.end is None


def test_texts_come_back():
    tokenizer = Characters.of(TEXT)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert list(tokenizer.encode_many([TEXT, "", "ll"])) == [
        tokenizer.encode(TEXT),
        [],
        tokenizer.encode("ll"),
    ]


def test_the_alphabet_of_several_texts_is_that_of_them_joined():
    assert Characters.of(iter(["ab", "", "bc"])).characters == Characters.of("abbc").characters


def test_a_strange_character_is_named():
    with pytest.raises(DataError, match="2 characters.*'x'.*'z'"):
        Characters.of("ab").encode("azbxz")


@pytest.mark.parametrize("id_", [-1, 2])
def test_an_id_outside_the_vocabulary_is_refused(id_: int):
    with pytest.raises(ConfigError, match=rf"id {id_} is not in the vocabulary; give ids of 0 to"):
        Characters.of("ab").decode([0, id_])


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_an_alphabet_holds_each_character_once(alphabet: str):
    with pytest.raises(DataError, match="is not an alphabet"):
        Characters(alphabet)


def test_half_a_surrogate_pair_is_no_character():
    with pytest.raises(DataError, match=r"the alphabet is not text \(.*surrogates not allowed"):
        Characters.of("ab\ud800")


def test_what_is_saved_is_loaded(tmp_path: Path):
    tokenizer = Characters.of(TEXT)
    tokenizer.save(tmp_path / "model")
    loaded = load_tokenizer(tmp_path / "model")
    assert isinstance(loaded, Characters)
    assert loaded.characters == tokenizer.characters
    assert loaded.fingerprint == tokenizer.fingerprint


def test_the_fingerprint_tells_alphabets_apart():
    assert Characters.of("ab").fingerprint == Characters.of("ba").fingerprint
    assert Characters.of("ab").fingerprint != Characters.of("abc").fingerprint
    assert Characters("ab").fingerprint != Characters("ba").fingerprint


def test_the_tokenizers_library_reads_the_file_alike(tmp_path: Path):
    tokenizer = Characters.of(TEXT)
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(TEXT).ids == tokenizer.encode(TEXT)
    assert theirs.decode(tokenizer.encode(TEXT)) == TEXT
    with pytest.raises(Exception, match="Missing"):
        theirs.encode("z")


@pytest.mark.parametrize(
    "ids", [{"a": 1, "b": 0}, {"a": 0, "b": 2}, {"a": 0, "bc": 1}, {"a": "0"}, {}]
)
def test_a_damaged_file_is_refused(tmp_path: Path, ids: dict):
    Characters.of("ab").save(tmp_path)
    at = tmp_path / "tokenizer.json"
    description = json.loads(at.read_text())
    description["model"]["vocab"] = ids
    at.write_text(json.dumps(description))
    with pytest.raises(DataError, match="'' is not an alphabet"):
        load_tokenizer(tmp_path)


def test_tiny_shakespeare_has_65_characters(options: Path):
    plays = corpus("tinyshakespeare")
    tokenizer = Characters.of(plays.train)
    assert tokenizer.vocabulary_size == 65
    assert [len(tokenizer.encode(text)) for text in plays.train] == [1_003_854]
    assert [len(tokenizer.encode(text)) for text in plays.validation] == [111_540]
