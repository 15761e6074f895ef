"""The rows of a search: of many documents, none of them twice."""

from __future__ import annotations

from random import Random

import pytest

from suffice.convert.search.search import rows_for
from suffice.errors import DataError
from suffice.text import Characters, Corpus, Documents

PARTS = ("scoring", "judging")
LETTERS = "abcdefghijklmnopqrst"


def documents(letters, size=400, known=True):
    texts = [letter * size for letter in letters]
    return Documents(name="some", read=lambda: texts, count=len(texts) if known else 0)


def rows(**given):
    corpus = Corpus(
        name="x", source="", train=documents(LETTERS[:10]), validation=documents(**given)
    )
    return rows_for(corpus, Characters(LETTERS), length=10, tokens=400)


def test_rows_come_from_many_documents():
    found = rows(letters=LETTERS[10:])
    assert {name: sum(map(len, part)) for name, part in found.items()} == {
        "calibration": 40,
        "scoring": 20,
        "judging": 20,
    }
    for name, least in (("calibration", 6), ("scoring", 6), ("judging", 6)):
        ids = {int(i) for batch in found[name] for i in batch.flatten()}
        assert len(ids) >= least
        assert max(ids) < 10 if name == "calibration" else min(ids) >= 10
    assert all(batch.shape[1] == 10 for part in found.values() for batch in part)


def test_few_documents_give_more_each():
    for known in (True, False):
        found = rows(letters="st", known=known)
        assert sum(map(len, found["judging"])) == 20


def test_no_row_both_chooses_and_judges():
    draws = Random(0)
    texts = ["".join(draws.choices(LETTERS, k=300)) for _ in range(4)]
    some = Documents(name="some", read=lambda: texts, count=4)
    corpus = Corpus(name="x", source="", train=some, validation=some)
    found = rows_for(corpus, Characters(LETTERS), length=10, tokens=200)
    chosen, judged = (
        {tuple(row) for batch in found[name] for row in batch.tolist()} for name in PARTS
    )
    assert len(chosen) == len(judged) == 10
    assert not chosen & judged


def test_short_text_is_refused():
    with pytest.raises(DataError, match="some gives 30 tokens in rows, less than 8 rows of"):
        rows(letters="s", size=30)
