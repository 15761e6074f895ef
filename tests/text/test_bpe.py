from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from suffice.errors import ConfigError, DataError
from suffice.text import BPE, bpe, gpt2, load_tokenizer

# bpe

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
    return json.loads(tokenizer.description)


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
        monkeypatch.setattr(bpe, "BATCH_CHARACTERS", together)
        assert list(trained.encode_many(iter(texts))) == alone
    assert list(trained.encode_many([])) == []


def test_texts_are_not_gathered_without_bound(trained: BPE, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bpe, "BATCH_CHARACTERS", 10)
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
    with pytest.raises(ConfigError, match=r"\[1, 2\] is not a text"):
        trained.encode([1, 2])


def test_what_is_saved_is_loaded(trained: BPE, tmp_path: Path):
    trained.save(tmp_path / "new" / "model")
    loaded = load_tokenizer(tmp_path / "new" / "model")
    assert isinstance(loaded, BPE)
    assert (loaded.vocabulary_size, loaded.begin, loaded.end) == (SIZE, None, 0)
    assert loaded.fingerprint == trained.fingerprint
    assert [loaded.encode(text) for text in TEXTS] == [trained.encode(text) for text in TEXTS]


def test_the_fingerprint_tells_tokenizers_apart(trained: BPE):
    text = trained.description
    assert BPE(text, end="<|endoftext|>").fingerprint == trained.fingerprint
    assert BPE(text).fingerprint != trained.fingerprint
    assert BPE(text, begin="<|endoftext|>").fingerprint != trained.fingerprint


def test_a_token_that_is_named_must_exist(trained: BPE):
    with pytest.raises(DataError, match="'<s>'"):
        BPE(trained.description, begin="<s>")


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
        ({"type": "Unigram"}, "describes a tokenizer of type 'Unigram'; BPE or WordPiece is due"),
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


def test_a_panic_of_the_library_is_a_data_error(trained: BPE):
    description = described(trained)
    description["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(
        DataError, match=r"cannot use the description \(Precompiled: .*Cannot parse"
    ):
        BPE(json.dumps(description))


# learning


LEARNED = ["the lowest, the slower and the lower"] * 3


@pytest.mark.parametrize("size", [256, (1 << 20) + 1, 300.0, True, "300"])
def test_an_illegal_vocabulary_size_is_refused(size: object):
    with pytest.raises(ConfigError, match="vocabulary_size="):
        BPE.train(LEARNED, size)


def test_one_text_in_place_of_documents_is_refused():
    with pytest.raises(ConfigError, match="one text"):
        BPE.train("the lowest", 260)


def test_too_few_pairs_are_refused_with_how_many_there_are():
    with pytest.raises(DataError, match="259 tokens"):
        BPE.train(["abcabc", "xyz"], 300)


@pytest.mark.parametrize(
    ("document", "error"), [(5, ConfigError), ("\udc00", DataError)], ids=["number", "surrogate"]
)
def test_a_document_that_is_not_text_is_refused(document: object, error: type):
    with pytest.raises(error, match="text"):
        BPE.train([*LEARNED, document], 260)


# gpt2

MODULE = import_module("suffice.text.bpe")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w")]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in GPT-2's format with five merges."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [left + right for left, right in MERGES] + ["<|endoftext|>"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES), ""]
    (tmp_path / "encoder.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (tmp_path / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    hello = [259, *(tokens.index(letter) for letter in "x!")]
    monkeypatch.setattr(MODULE, "KNOWN_TOKENIZERS", {"hellox!": hello})
    return tmp_path


def test_the_two_files_make_a_tokenizer(small: Path):
    tokenizer = gpt2(small)
    assert tokenizer.encode("hello w") == [259, 260]
    assert tokenizer.decode([259, 260]) == "hello w"
    assert tokenizer.vocabulary_size == 262
    assert (tokenizer.begin, tokenizer.end) == (None, 261)
    assert 261 not in tokenizer.encode("<|endoftext|>")


def test_the_files_may_have_the_names_of_hugging_face(small: Path):
    fingerprint = gpt2(small).fingerprint
    (small / "encoder.json").rename(small / "vocab.json")
    (small / "vocab.bpe").rename(small / "merges.txt")
    assert gpt2(small).fingerprint == fingerprint


def test_a_vocabulary_that_is_not_gpt2s_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with pytest.raises(DataError, match="15496, 1"):
        gpt2(small)


def test_a_folder_without_the_files_is_refused(small: Path):
    (small / "vocab.bpe").unlink()
    with pytest.raises(DataError, match=r"encoder\.json.*vocab\.js"):
        gpt2(small)


def test_without_a_folder_the_users_data_is_read(small: Path, home: Path, monkeypatch):
    for name, file in (("VOCABULARY", MODULE.VOCABULARY), ("MERGES", MODULE.MERGES)):
        content = (small / Path(file.path).name).read_bytes()
        at = home / file.path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content)
        known = replace(file, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(MODULE, name, known)
    assert gpt2().fingerprint == gpt2(small).fingerprint


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("encoder.json", "{", "is not JSON"),
        ("encoder.json", "[]", "is not a JSON object"),
        ("encoder.json", "{}", "cannot use"),
        ("encoder.json", '{"a": "b", "c": []}', "cannot use"),
        ("vocab.bpe", "h e l\n", "cannot use"),
        ("vocab.bpe", "q q\n", "Token `qq` out of vocabulary"),
    ],
)
def test_damaged_files_are_refused(small: Path, name: str, content: str, sentence: str):
    (small / name).write_text(content)
    with pytest.raises(DataError, match=sentence) as caught:
        gpt2(small)
    assert str(small) in str(caught.value)


def test_the_published_files_give_the_published_encodings(options: Path):
    tokenizer = gpt2()
    assert (tokenizer.vocabulary_size, tokenizer.end) == (50_257, 50_256)
    for text, ids in (
        ("hello world", [31373, 995]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        (" a", [257]),
        ("", []),
    ):
        assert tokenizer.encode(text) == ids
