from __future__ import annotations

import pytest

from suffice.errors import ConfigError, DataError
from suffice.text import Characters, Corpus, Documents, choose_tokenizer, load


def corpus(*texts):
    parts = ("train", "validation")
    made = {n: Documents(name=n, read=lambda t=t: [t]) for n, t in zip(parts, texts, strict=True)}
    return Corpus(name="mine", source="me", **made)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_characters_are_those_of_both_parts():
    assert choose_tokenizer("characters", corpus("ba", "ca")).characters == "abc"


def test_byte_pairs_are_learned():
    found = choose_tokenizer("bpe", corpus("low lower low lower", "x"), vocabulary_size=258)
    assert found.vocabulary_size == 258


def test_a_saved_tokenizer_is_loaded(tmp_path):
    Characters("xyz").save(tmp_path)
    assert choose_tokenizer(str(tmp_path), corpus("a", "b")).characters == "xyz"


def test_names_and_files_reach_their_readers(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "gpt2", lambda console: ("gpt2", console))
    monkeypatch.setattr(load, "llama", lambda path: path)
    assert choose_tokenizer("gpt2", corpus("a", "b")) == ("gpt2", None)
    with pytest.raises(DataError, match="there is no Llama tokenizer at .*tokenizer.json; put"):
        choose_tokenizer("llama", corpus("a", "b"))
    place = tmp_path / "suffice" / "tokenizers" / "llama" / "tokenizer.bin"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x")
    assert choose_tokenizer("llama", corpus("a", "b")) == place
    assert choose_tokenizer(str(place), corpus("a", "b")) == place


def test_what_is_unknown_or_of_no_use_is_refused():
    with pytest.raises(ConfigError, match="there is no tokenizer 'gpt3'; give characters, bpe"):
        choose_tokenizer("gpt3", corpus("a", "b"))
    for name, size in (("bpe", None), ("characters", 300)):
        with pytest.raises(ConfigError, match=f"tokenizer '{name}' with vocabulary_size={size}"):
            choose_tokenizer(name, corpus("a", "b"), vocabulary_size=size)
