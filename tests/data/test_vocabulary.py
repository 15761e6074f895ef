from __future__ import annotations

import pytest

from suffice.data.reviews import PAD, START, UNKNOWN, Vocabulary, words
from suffice.errors import ConfigError


def test_words_are_lower_case_without_punctuation():
    assert words(
        'A "well-made" film; isn\'t it?!\tTen\n\n(of)\u00a0ten...<br />\u00c9TAT_UNIS'
    ) == [
        *("a", "well", "made", "film", "isn't", "it"),
        *("ten", "of", "ten", "br", "\u00e9tat", "unis"),
    ]
    assert words(" ... ") == []


def test_every_punctuation_mark_but_the_apostrophe_cuts():
    marks = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'
    assert len(marks) == 31
    assert all(words(f"a{mark}b") == ["a", "b"] for mark in marks)
    assert words("a'b") == ["a'b"]


def test_words_are_ranked_by_frequency_then_by_code_point():
    texts = [["z", "b", "a"], ["z", "\u00e9", "b"], ["z", "a", "Z"]]
    vocabulary = Vocabulary.build(texts, 100)
    assert vocabulary.words[:3] == ("<pad>", "<start>", "<unknown>")
    assert vocabulary.words[3:] == ("z", "a", "b", "Z", "\u00e9")
    assert Vocabulary.build(reversed(texts), 100) == vocabulary


def test_size_counts_the_special_ids():
    vocabulary = Vocabulary.build([["a", "a", "b", "b", "c"]], 5)
    assert vocabulary.words[3:] == ("a", "b")
    assert vocabulary.encode(["c", "b", "a", "nothing"]) == [UNKNOWN, 4, 3, UNKNOWN]


def test_a_text_cannot_spell_a_special_id():
    vocabulary = Vocabulary.build([["a"]], 4)
    assert vocabulary.encode(["<pad>", "<start>", "a"]) == [UNKNOWN, UNKNOWN, 3]
    assert (PAD, START, UNKNOWN) == (0, 1, 2)


@pytest.mark.parametrize("size", [3, 0, -1, 10.0, "20000", True])
def test_a_size_without_room_for_a_word_is_refused(size: object):
    with pytest.raises(ConfigError, match=r"vocabulary_size=.* give an integer above 3"):
        Vocabulary.build([["a"]], size)
