from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from suffice.errors import ConfigError, DataError
from suffice.text import BPE, bpe, load_tokenizer

TEXTS = [
    "the lowest and the slower of the three are there; they lower the other rate\n",
    "def lower(self, other):\n    return self.rate < other.rate\n" * 3,
    "\u00e9t\u00e9, \u00e9t\u00e9 - 12345 12345\r\n\t\x00\U0001f600\U0001f600",
]
SIZE = 300


@pytest.fixture(scope="module")
def trained() -> BPE:
    return BPE.train(TEXTS, SIZE)


def described(tokenizer: BPE) -> dict:
    return json.loads(tokenizer._description)


def cut(text: str) -> list[tuple[str, ...]]:
    """Cut a text into GPT-2's words, each a tuple of the characters that stand for bytes."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [tuple(word) for word, _ in words]


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    at = 0
    while at < len(word):
        if word[at : at + 2] == pair:
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return tuple(out)


def test_each_merge_joins_a_most_frequent_pair(trained: BPE):
    words = Counter(word for text in TEXTS for word in cut(text))
    merges = [tuple(pair) for pair in described(trained)["model"]["merges"]]
    assert len(merges) == SIZE - 257
    for pair in merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for left_right in itertools.pairwise(word):
                pairs[left_right] += count
        assert pairs[pair] == max(pairs.values())
        grown: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            grown[merged(word, pair)] += count
        words = grown


@pytest.mark.parametrize("text", [*TEXTS, "three otherwise unseen words\u00df", "a  b   c\n\n\n d"])
def test_an_encoding_is_the_merges_in_their_order(trained: BPE, text: str):
    model = described(trained)["model"]
    want = []
    for word in cut(text):
        for pair in model["merges"]:
            word = merged(word, tuple(pair))
        want += [model["vocab"][piece] for piece in word]
    assert trained.encode(text) == want


@pytest.mark.parametrize("text", [*TEXTS, "", " ", "\U0010ffff\x00\x7f\u0378", "<|endoftext|> x"])
def test_any_text_comes_back(trained: BPE, text: str):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.end not in ids


def test_the_end_has_the_first_id_and_shows_its_name(trained: BPE):
    assert trained.vocabulary_size == SIZE
    assert trained.begin is None
    assert trained.end == 0
    assert trained.decode([0]) == "<|endoftext|>"


def test_half_a_character_shows_as_unknown(trained: BPE):
    ids = trained.encode("\u4e2d")  # of which no pair was seen
    assert len(ids) == 3
    assert trained.decode(ids[:2]) == "\ufffd"


def test_many_texts_are_encoded_as_each_alone(trained: BPE, monkeypatch: pytest.MonkeyPatch):
    texts = [text[start:] for text in TEXTS for start in range(0, 20, 3)]
    alone = [trained.encode(text) for text in texts]
    for together in (1, 100, 1 << 20):
        monkeypatch.setattr(bpe, "TOGETHER", together)
        assert list(trained.encode_many(iter(texts))) == alone
    assert list(trained.encode_many([])) == []


def test_texts_are_not_gathered_without_bound(trained: BPE, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bpe, "TOGETHER", 10)
    taken = []

    def texts():
        for number in range(100):
            taken.append(number)
            yield "12345"

    next(trained.encode_many(texts()))
    assert taken == [0, 1]


@pytest.mark.parametrize("id_", [-1, SIZE, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(trained: BPE, id_: int):
    with pytest.raises(ConfigError, match=rf"id {id_} is not in the vocabulary; give ids of 0 to"):
        trained.decode([5, id_])


def test_half_a_surrogate_pair_is_refused(trained: BPE):
    with pytest.raises(DataError, match=r"a text cannot be encoded \(.*surrogates not allowed"):
        trained.encode("a\ud800")


def test_something_else_than_text_is_refused(trained: BPE):
    with pytest.raises(ConfigError, match=r"\[1, 2\] is not a text; give a str"):
        trained.encode([1, 2])


def test_what_is_saved_is_loaded(trained: BPE, tmp_path: Path):
    trained.save(tmp_path / "new" / "model")
    loaded = load_tokenizer(tmp_path / "new" / "model")
    assert isinstance(loaded, BPE)
    assert (loaded.vocabulary_size, loaded.begin, loaded.end) == (SIZE, None, 0)
    assert loaded.fingerprint == trained.fingerprint
    assert [loaded.encode(text) for text in TEXTS] == [trained.encode(text) for text in TEXTS]


def test_the_fingerprint_tells_tokenizers_apart(trained: BPE):
    text = trained._description
    assert BPE(text, end="<|endoftext|>").fingerprint == trained.fingerprint
    assert BPE(text).fingerprint != trained.fingerprint
    assert BPE(text, begin="<|endoftext|>").fingerprint != trained.fingerprint


def test_a_token_that_is_named_must_exist(trained: BPE):
    with pytest.raises(DataError, match=r"the description has no token '<s>'; name one of its voc"):
        BPE(trained._description, begin="<s>")


def test_truncation_and_padding_of_a_file_are_not_used(trained: BPE):
    description = described(trained)
    cutting = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    filling = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None}
    filling |= {"pad_id": 7, "pad_type_id": 0, "pad_token": "x"}
    description |= {"truncation": cutting, "padding": filling}
    assert BPE(json.dumps(description)).encode(TEXTS[0]) == trained.encode(TEXTS[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"type": "Unigram"}, "describes a tokenizer of type 'Unigram'; BPE is due"),
        ({"dropout": 0.1}, r"drops merges at random \(dropout 0\.1\)"),
        ({"vocab": {"a": 0, "b": 0}, "merges": []}, "gives two tokens the same id"),
        ({"vocab": []}, "has no vocabulary"),
        ({"merges": [["a", "zz"]]}, r"the tokenizers library cannot use my\.json \(Token `zz` out"),
        ({"vocab": {"a": -1}, "merges": []}, r"cannot use my\.json \(.*expected u32"),
    ],
)
def test_a_description_of_something_else_is_refused(trained: BPE, change: dict, sentence: str):
    description = described(trained)
    description["model"] |= change
    with pytest.raises(DataError, match=sentence):
        BPE(json.dumps(description), name="my.json")


@pytest.mark.parametrize("model", [None, [], "BPE"])
def test_a_description_without_a_model_is_refused(model: object):
    with pytest.raises(DataError, match="the description describes a tokenizer of type"):
        BPE(json.dumps({"model": model}))


def test_where_the_library_panics_a_sentence_is_given(trained: BPE):
    description = described(trained)
    description["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(
        DataError, match=r"cannot use the description \(Precompiled: .*Cannot parse"
    ):
        BPE(json.dumps(description))


def test_ctrl_c_within_the_library_is_not_taken_for_a_damaged_file(
    trained: BPE, monkeypatch: pytest.MonkeyPatch
):
    class Interrupted:
        def decode(self, *_args: object, **_options: object) -> str:
            raise KeyboardInterrupt

    tokenizer = BPE(trained._description)
    monkeypatch.setattr(tokenizer, "_library", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.decode([1])


def test_without_the_library_the_way_to_get_it_is_told(
    trained: BPE, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"not installed; run pip install 'suffice\[text\]', or"):
        BPE(trained._description)
    with pytest.raises(ConfigError, match="byte-pair tokenizers need the library tokenizers"):
        BPE.train(TEXTS, SIZE)
