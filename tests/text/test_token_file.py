from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from suffice.errors import ConfigError, DataError
from suffice.text import Characters, TokenFile, token_file
from suffice.text.token_file import dtype_for, header_at, starts_at

TEXTS = ["the lowest", "and", "", "the slower of the three"]
LETTERS = Characters.of(TEXTS)
ABC = Characters("abcdefghijklmnopqrstuvwxyz")


class Numbers:
    """A tokenizer of a vocabulary of any size: a text is its ids."""

    fingerprint = "numbers"

    def __init__(self, size: int, begin: int | None = None, end: int | None = None):
        self.vocabulary_size, self.begin, self.end = size, begin, end

    def encode_many(self, texts):
        return ([int(word) for word in text.split()] for text in texts)


def drawn(file: TokenFile, size, length, **place) -> torch.Tensor:
    return file.take(file.places(size, length, **place), length)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / "t.bin"


@pytest.fixture
def alphabet(at: Path) -> TokenFile:
    return TokenFile.write(at, ["abcde", "fghijklmnop", "qrstuvwxyz"], ABC)


def test_documents_follow_one_another(at: Path):
    file = TokenFile.write(at, TEXTS, LETTERS)
    assert file.tokens.tolist() == LETTERS.encode("".join(TEXTS))
    assert file.documents.tolist() == [0, 10, 13]
    assert len(file) == 36
    assert [LETTERS.decode(file.document(n).tolist()) for n in range(3)] == [t for t in TEXTS if t]


@pytest.mark.parametrize(("begin", "end"), [(None, 9), (8, None), (8, 9)])
def test_each_document_stands_between_begin_and_end(at: Path, begin: int | None, end: int | None):
    file = TokenFile.write(at, ["1 2", "3"], Numbers(10, begin, end))
    before, after = [begin] if begin else [], [end] if end else []
    assert file.document(0).tolist() == [*before, 1, 2, *after]
    assert file.document(1).tolist() == [*before, 3, *after]
    assert (file.header.begin, file.header.end) == (begin, end)


@pytest.mark.parametrize(
    ("size", "bytes_each"), [(1 << 16, 2), ((1 << 16) + 1, 4)], ids=["uint16", "uint32"]
)
def test_ids_take_two_bytes_where_they_fit(at: Path, size: int, bytes_each: int):
    file = TokenFile.write(at, [f"0 1 {size - 1}"], Numbers(size))
    assert file.tokens.dtype == dtype_for(size)
    assert file.document(0).tolist() == [0, 1, size - 1]
    array = np.load(at)
    assert (array.nbytes, array.tolist()) == (3 * bytes_each, [0, 1, size - 1])


def test_writing_takes_one_document_at_a_time(at: Path):
    taken = []

    class Watching(Numbers):
        def encode_many(self, texts):
            for text in texts:
                taken.append(text)
                yield [int(text)]

    def texts():
        for number in range(3):
            assert len(taken) == number
            yield str(number)

    assert len(TokenFile.write(at, texts(), Watching(5))) == 3


def test_windows_are_drawn_by_seed_and_step_alone(alphabet: TokenFile, at: Path):
    first = drawn(alphabet, 4, 5, seed=3, step=7)
    assert first.shape == (4, 6)
    assert first.dtype == torch.int64
    drawn(alphabet, 4, 5, seed=3, step=8)
    torch.manual_seed(9)
    assert torch.equal(drawn(TokenFile(at), 4, 5, seed=3, step=7), first)
    others = [drawn(alphabet, 4, 5, seed=s, step=t) for s, t in ((3, 8), (4, 7), (7, 3))]
    assert not any(torch.equal(other, first) for other in others)
    assert torch.equal(drawn(alphabet, 9, 5, seed=3, step=7)[:4], first)


def test_the_stream_of_windows_is_frozen(alphabet: TokenFile):
    assert alphabet.places(6, 5, seed=0, step=0).tolist() == [8, 2, 6, 12, 6, 0]
    far = alphabet.places(6, 5, seed=1337, step=2**63 + 1)
    assert far.tolist() == [18, 7, 9, 3, 15, 9]


def test_every_window_is_drawn_and_none_that_leaves_the_file(alphabet: TokenFile):
    places = alphabet.places(20_000, 5, seed=1, step=1).tolist()
    counts = Counter(places)
    assert sorted(counts) == list(range(26 - 5))
    expected = 20_000 / 21
    spread = sum((count - expected) ** 2 / expected for count in counts.values())
    assert spread < 45  # chi-squared of 20 degrees of freedom exceeds this once in a thousand
    windows = alphabet.take(torch.tensor([0, 20]), 5)
    assert windows.tolist() == [[0, 1, 2, 3, 4, 5], [20, 21, 22, 23, 24, 25]]


def test_a_window_may_be_the_whole_file(alphabet: TokenFile):
    assert drawn(alphabet, 2, 25, seed=0, step=0).tolist() == [list(range(26))] * 2


def test_windows_know_their_documents(alphabet: TokenFile):
    got = alphabet.segments(torch.tensor([0, 3, 14]), 4)
    assert got.tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 2, 2, 2]]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("length", [1, 4, 5, 24, 25, 26, 100])
def test_every_token_but_the_first_is_predicted_once(alphabet: TokenFile, length: int, size: int):
    read, predicted = [], []
    shapes = []
    for batch in alphabet.windows(length, size):
        shapes.append(tuple(batch.shape))
        read += batch[:, :-1].flatten().tolist()
        predicted += batch[:, 1:].flatten().tolist()
    assert read == list(range(25))
    assert predicted == list(range(1, 26))
    full = [shape for shape in shapes if shape[1] == length + 1]
    assert sum(rows for rows, _ in full) == 25 // length
    assert all(rows == size for rows, _ in full[:-1])
    assert len(shapes) - len(full) <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda file: drawn(file, 0, 5, seed=0, step=0),
        lambda file: drawn(file, True, 5, seed=0, step=0),
        lambda file: drawn(file, 1, 0, seed=0, step=0),
        lambda file: drawn(file, 1, 5, seed=-1, step=0),
        lambda file: drawn(file, 1, 5, seed=0, step=0.5),
        lambda file: next(file.windows(0)),
        lambda file: next(file.windows(5, 0)),
    ],
)
def test_numbers_that_cannot_be_are_refused(alphabet: TokenFile, call):
    with pytest.raises(
        ConfigError, match=r"(size|length|seed|step)=.* is not legal; give an integ"
    ):
        call(alphabet)


def test_a_window_longer_than_the_file_is_refused(alphabet: TokenFile):
    with pytest.raises(ConfigError, match="length=26.*27 tokens"):
        drawn(alphabet, 1, 26, seed=0, step=0)


@pytest.mark.parametrize("place", [-1, 21])
def test_a_window_outside_the_file_is_refused(alphabet: TokenFile, place: int):
    for call in (alphabet.take, alphabet.segments):
        with pytest.raises(ConfigError, match="6 tokens"):
            call(torch.tensor([0, place]), 5)


@pytest.mark.parametrize("number", [-1, 3])
def test_a_document_that_is_not_there_is_refused(alphabet: TokenFile, number: int):
    with pytest.raises(ConfigError, match=rf"has no document {number}; give 0 to 2"):
        alphabet.document(number)


def test_one_token_cannot_be_predicted(at: Path):
    with pytest.raises(ConfigError, match="holds one token, of which none can be predicted"):
        next(TokenFile.write(at, ["a"], ABC).windows(5))


def test_the_tokenizer_that_reads_must_be_the_one_that_wrote(alphabet: TokenFile, at: Path):
    assert len(TokenFile(at, tokenizer=ABC)) == 26
    with pytest.raises(DataError, match=r"t\.bin"):
        TokenFile(at, tokenizer=LETTERS)


def test_documents_without_text_are_refused_and_the_old_file_stays(alphabet: TokenFile, at: Path):
    for texts in ([], [""]):
        with pytest.raises(DataError, match=r"t\.bin"):
            TokenFile.write(at, texts, ABC)
    assert TokenFile(at).tokens.tolist() == list(range(26))


@pytest.mark.parametrize(
    ("texts", "error", "sentence"),
    [
        (["abc", "a1"], DataError, "alphabet: '1'"),
        (["abc", ["a"]], ConfigError, r"\['a'\] is not a text; give a str"),
    ],
)
def test_a_broken_document_leaves_the_old_file(
    alphabet: TokenFile, at: Path, texts, error, sentence
):
    before = {path.name: path.read_bytes() for path in at.parent.iterdir()}
    with pytest.raises(error, match=sentence):
        TokenFile.write(at, texts, ABC)
    assert {path.name: path.read_bytes() for path in at.parent.iterdir()} == before


def test_a_tokenizer_that_leaves_its_vocabulary_is_refused(at: Path):
    with pytest.raises(ConfigError, match="id 70000 is not in the vocabulary"):
        TokenFile.write(at, ["1 70000"], Numbers(10))


def test_a_write_that_dies_between_the_files_leaves_none(alphabet, at: Path, monkeypatch):
    """The header goes before the others come, so old and new files are never read together."""

    def dying(_facts: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(token_file, "asdict", dying)
    with pytest.raises(KeyboardInterrupt):
        TokenFile.write(at, ["xyz"], ABC)
    with pytest.raises(DataError, match=r"t\.bin\.json"):
        TokenFile(at)


@pytest.mark.parametrize("which", [lambda at: at, starts_at])
def test_a_file_cut_short_or_absent_is_refused(alphabet: TokenFile, at: Path, which):
    part = which(at)
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DataError, match="cannot be read"):
        TokenFile(at)
    part.unlink()
    with pytest.raises(DataError, match="No such file"):
        TokenFile(at)


def test_an_array_of_another_size_is_refused(alphabet: TokenFile, at: Path):
    with at.open("wb") as file:
        np.save(file, np.arange(25, dtype="<u2"))
    with pytest.raises(DataError, match=r"\[26\] is due"):
        TokenFile(at)


def test_files_of_the_version_before_are_read(alphabet: TokenFile, at: Path):
    """Raw tokens and starts, as the first version wrote them and nanoGPT does."""
    tokens, starts = np.array(alphabet.tokens), np.array(alphabet.documents)
    at.write_bytes(tokens.astype("<u2").tobytes())
    starts_at(at).write_bytes(starts.astype("<u8").tobytes())
    facts = json.loads(header_at(at).read_text())
    header_at(at).write_text(json.dumps({**facts, "version": 1}))
    old = TokenFile(at, tokenizer=ABC)
    assert old.tokens.tolist() == tokens.tolist()
    assert old.documents.tolist() == starts.tolist()
    at.write_bytes(at.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"\[26\] is due"):
        TokenFile(at)


@pytest.mark.parametrize(
    "starts", [[1, 5, 16], [0, 16, 5], [0, 5, 5], [0, 5, 26], [0, 5, 2**64 - 1]]
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_starts_that_do_not_rise_are_refused(
    alphabet: TokenFile, at: Path, starts, at_once, monkeypatch
):
    monkeypatch.setattr(token_file, "STARTS_CHECKED", at_once)
    assert len(TokenFile(at)) == 26
    with starts_at(at).open("wb") as file:
        np.save(file, np.array(starts, dtype="<u8"))
    with pytest.raises(DataError, match=r"t\.bin\.starts"):
        TokenFile(at)


@pytest.mark.parametrize("id_", [26, 65535])
def test_an_id_outside_the_vocabulary_is_refused_when_it_is_read(alphabet, at: Path, id_: int):
    tokens = np.array(alphabet.tokens)
    tokens[10] = id_
    with at.open("wb") as file:
        np.save(file, tokens)
    damaged = TokenFile(at)
    assert damaged.take(torch.tensor([0]), 5).shape == (1, 6)
    for call in (lambda: damaged.take(torch.tensor([8]), 5), lambda: damaged.document(1)):
        with pytest.raises(
            DataError, match=rf"is damaged: it holds the id {id_}, and its vocabulary"
        ):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0},
        {"documents": 27},
        {"version": 3},
        {"vocabulary_size": 0},
        {"vocabulary_size": 2**32 + 1},
        {"end": 26},
        {"begin": -1},
        {"tokens": "26"},
        {"tokenizer": None},
        {"more": 1},
    ],
    ids=json.dumps,
)
def test_damaged_facts_are_refused(alphabet: TokenFile, at: Path, change: dict):
    facts = json.loads(header_at(at).read_text())
    header_at(at).write_text(json.dumps({**facts, **change}))
    with pytest.raises(DataError, match=r"t\.bin\.json"):
        TokenFile(at)
