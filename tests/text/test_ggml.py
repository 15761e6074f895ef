"""Vocabularies of GGUF files give the tokens that they gave before they were written."""

from __future__ import annotations

import json

import pytest
import tokenizers

from suffice.errors import ConfigError, DataError
from suffice.text import BPE, Characters, gpt2
from suffice.text.ggml import BYTES, PRE_TOKENIZERS, PREFIX, read_vocabulary, vocabulary_entries
from suffice.text.tokenizer import description_of

TEXTS = [
    "Hello world, hello low lower lowest; I'll, WE'VE 1234567 and 89.",
    "  two  spaces\tand\ttabs \n\n and\r\nlines",
    "naïve café — “quotes” 日本語 😀",
    "    indented(code) == [1, 2]",
] * 3
END = "<|endoftext|>"


def trained(pre):
    empty = description_of(
        pre_tokenizer=pre, decoder=BYTES, model={"type": "BPE", "vocab": {}, "merges": []}
    )
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(empty))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, show_progress=False, special_tokens=[END], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return BPE(tokenizer.to_str(), end=END)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_byte_pairs_come_back(name):
    before = trained(PRE_TOKENIZERS[name])
    entries = vocabulary_entries(before, before.vocabulary_size + 3)
    assert entries[f"{PREFIX}pre"] == name
    assert len(entries[f"{PREFIX}tokens"]) == before.vocabulary_size + 3
    after = read_vocabulary(entries, "here")
    assert (after.vocabulary_size, after.end) == (before.vocabulary_size, before.end)
    for text in TEXTS:
        assert after.encode(text) == before.encode(text)
        assert after.decode(before.encode(text)) == text


def test_words_are_cut_differently_under_each_name():
    text = "I'LL 1234567"
    cuts = {
        name: tuple(
            piece
            for piece, _ in tokenizers.Tokenizer.from_str(
                json.dumps(
                    description_of(
                        pre_tokenizer=cut,
                        decoder=BYTES,
                        model={"type": "BPE", "vocab": {}, "merges": []},
                    )
                )
            ).pre_tokenizer.pre_tokenize_str(text)
        )
        for name, cut in PRE_TOKENIZERS.items()
    }
    assert len(set(cuts.values())) == len(cuts)


def test_characters_come_back():
    before = Characters("\n '\"\\aé日😀")
    after = read_vocabulary(vocabulary_entries(before, 12), "here")
    assert after.characters == before.characters


def test_a_cut_that_is_not_known_is_refused():
    entries = vocabulary_entries(trained(BYTES), 330)
    for name in ("default", "deepseek-v9"):
        with pytest.raises(ConfigError, match=name):
            read_vocabulary({**entries, f"{PREFIX}pre": name}, "here")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": "bert"}, "bert"),
        ({"tokens": "text"}, "no list of tokens"),
        ({"token_type": [1]}, "token_type"),
        ({"merges": ["no"]}, "not pairs"),
        ({"merges": ["zzzz qqqq"]}, "zzzz"),
    ],
)
def test_entries_that_do_not_fit_are_refused(change, match):
    entries = vocabulary_entries(trained(BYTES), 330)
    changed = {**entries, **{PREFIX + name: value for name, value in change.items()}}
    with pytest.raises((ConfigError, DataError), match=match):
        read_vocabulary(changed, "here")


def test_a_tokenizer_without_an_end_is_refused():
    before = trained(BYTES)
    with pytest.raises(ConfigError, match="EOS"):
        vocabulary_entries(BPE(before.description), 330)


def test_pieces_come_back(tmp_path):
    pieces = ["\u2581", "a", "b", "ab", "\u2581ab", "\u2581a"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-6.0, -5.0, -5.5, -1.0, -2.0, -3.0]
    entries = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    entries |= {"bos_token_id": 1, "eos_token_id": 2}
    before = read_vocabulary({PREFIX + n: v for n, v in entries.items()}, "here")
    assert (before.begin, before.end) == (1, 2)
    assert [tokens[i] for i in before.encode("ab a b")] == ["\u2581ab", "\u2581a", "\u2581", "b"]
    assert before.decode(before.encode("ab é b")) == "ab é b"
    after = read_vocabulary(vocabulary_entries(before, 300), "here")
    for text in ("ab a b", "bab é", "  aab"):
        assert after.encode(text) == before.encode(text)


def test_gpt2s_own_vocabulary_comes_back():
    try:
        before = gpt2()
    except DataError as error:
        pytest.skip(f"GPT-2's vocabulary is absent: {error}")
    after = read_vocabulary(vocabulary_entries(before, 50_257), "here")
    for text in TEXTS:
        assert after.encode(text) == before.encode(text)
