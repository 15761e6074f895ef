"""Review classification tasks (Amazon, IMDB, clothing) and their word vocabulary."""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from suffice.data.dataset import Dataset, Split, check_counts, draw_rows, held_out, sha1_of
from suffice.data.files import DataFile, atomically, cache, lines, locate, members, read, record
from suffice.errors import ConfigError, DataError
from suffice.utils.records import is_whole

if TYPE_CHECKING:
    from rich.console import Console


PAD, START, UNKNOWN = 0, 1, 2
SPECIAL = ("<pad>", "<start>", "<unknown>")

PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'  # the apostrophe belongs to words
MARKS = PUNCTUATION + (
    "¿¡«»‹›“”„‚…—–·•،؛؟।॥、。〈〉《》「」『』【】〔〕〜・"
    "！＂＃％＆（）＊＋，－．／：；＜＝＞？＠［＼］＿｛｜｝～｡｢｣､"  # noqa: RUF001
)
# Thai to Burmese, Khmer, and the characters and syllables of Chinese and Japanese
UNSPACED = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f"
)
RULES: dict[str, tuple[str, str | None]] = {
    "ascii": (PUNCTUATION, None),
    "unicode": (MARKS, f"[{UNSPACED}]"),
    "characters": ("<", "."),  # without the mark no text can spell <start>
}
"""The marks that cut words and are left out, and the pattern of characters that are a word each."""
_SPACES = {rule: str.maketrans(dict.fromkeys(marks, " ")) for rule, (marks, _) in RULES.items()}
_SINGLE = {rule: re.compile(single) for rule, (_, single) in RULES.items() if single}


def words(text: str, rule: str = "ascii") -> list[str]:
    """Return the words of a text: lower case, cut at white space and punctuation.

    Args:
        rule: "ascii" cuts at the punctuation of ASCII; "unicode" at that of other scripts, too, and
            makes each character of a script without spaces between words (Chinese, Japanese, Thai)
            a word; "characters" makes each character one, but for "<", which is left out.

    Example:
        >>> words("It's GOOD.<br />(Really!)")
        ["it's", 'good', 'br', 'really']
        >>> words("很好，真的 good!", "unicode"), words("A-c", "characters")
        (['很', '好', '真', '的', 'good'], ['a', '-', 'c'])
    """
    text = text.lower().translate(_SPACES[rule])
    return (_SINGLE[rule].sub(r" \g<0> ", text) if rule in _SINGLE else text).split()


def check_vocabulary_size(size: int) -> None:
    """Raise ConfigError for a size of vocabulary that leaves no room for a word."""
    if not is_whole(size, least=len(SPECIAL) + 1):
        raise ConfigError(
            f"vocabulary_size={size!r} is not legal; give an integer above {len(SPECIAL)}, for "
            "three ids are special."
        )


@dataclass(frozen=True)
class Vocabulary:
    """The word of each id: 0 pads, 1 starts a text, 2 is any unknown word, words from 3.

    Example:
        >>> vocabulary = Vocabulary.build([["b", "a", "b"], ["c", "a", "d"]], size=6)
        >>> vocabulary.words
        ('<pad>', '<start>', '<unknown>', 'a', 'b', 'c')
        >>> vocabulary.encode(["b", "d"])
        [4, 2]
    """

    words: tuple[str, ...]

    @classmethod
    def build(cls, texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """Return the vocabulary of the most frequent words of some texts: `size` ids at most.

        The more frequent word has the smaller id; of equally frequent words, the one that comes
        first by code points. So the order of the texts does not matter.
        """
        check_vocabulary_size(size)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(SPECIAL + tuple(ranked[: size - len(SPECIAL)]))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIAL)}

    def encode(self, text: Sequence[str]) -> list[int]:
        """Return the id of each word of a text, `UNKNOWN` for a word that was not kept."""
        ids = self._ids
        return [ids.get(word, UNKNOWN) for word in text]


def last_words(
    texts: Sequence[str],
    labels: Sequence[int],
    vocabulary: Vocabulary,
    length: int,
    rule: str = "ascii",
) -> Split:
    """Return texts as rows of their last words, see `rows_of_words`, and their classes."""
    inputs = rows_of_words(texts, vocabulary, length, rule)
    return Split(inputs, torch.tensor(labels), inputs != PAD)


def rows_of_words(texts: Sequence[str], vocabulary: Vocabulary, length: int, rule: str) -> Tensor:
    """Return texts as rows int64 [N, length] of their last ids, padded in front.

    A text is its words after a start token, which a text that fills the row loses.
    """
    ids = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in enumerate(texts):
        tokens = [START, *vocabulary.encode(words(text, rule)[-length:])][-length:]
        ids[row, length - len(tokens) :] = tokens
    return torch.from_numpy(ids)


def rows_of_tokens(
    tokenizer: Any, texts: Sequence[str], length: int, reads: str = "end"
) -> tuple[Tensor, Tensor, list[int]]:
    """Return texts as rows of their tokens, padded in front, cut by a tokenizer.

    A row begins with the token that begins a document, or else ends one, where there is room.

    `reads` is "end" for the last tokens of each text, "start" for the first, between the special
    tokens that a `BPE` puts around a text. Ids are int64 [N, length], True in bool [N, length] is a
    token, and the list holds the tokens of each whole text.
    """
    ids = torch.full((len(texts), length), PAD, dtype=torch.int64)
    valid, lengths = torch.zeros(len(texts), length, dtype=torch.bool), []
    start = start_of(tokenizer)
    before, after = tokenizer.around if reads == "start" else ([], [])
    if (room := length - len(before) - len(after)) < 1:
        raise ConfigError(f"length={length}: special tokens leave no room for a text; give more.")
    for row, encoded in enumerate(tokenizer.encode_many(texts)):
        first = [*before, *encoded[:room], *after]
        tokens = first if reads == "start" else [start, *encoded][-length:]
        ids[row, length - len(tokens) :] = torch.tensor(tokens)
        valid[row, length - len(tokens) :] = True
        lengths.append(len(encoded))
    return ids, valid, lengths


def start_of(tokenizer: Any) -> int:
    """Return the id that a row begins with: that which begins a document, else ends one."""
    return next((i for i in (tokenizer.begin, tokenizer.end) if i is not None), START)


PARTS = {0: "test", 1: "validation"}  # by sha1 of the text, modulo 10; the others train


def dataset_of_texts(
    parts: dict[str, tuple[list[str], list[int]]],
    *,
    where: str,
    unit: str,
    title: str,
    length: int,
    vocabulary_size: int,
    rows: int | None,
    rule: str = "ascii",
    learn_tokenizer: Callable[[Sequence[str]], Any] | None = None,
    reads: str = "end",
    **fields: Any,
) -> Dataset:
    """Return the texts and classes of each part as a task: the last words of each text.

    Words are ranked by frequency in the training rows alone; `learn_tokenizer` makes a tokenizer of
    the training texts, whose tokens take the place of words.
    """
    for part, (texts, _) in parts.items():
        if not texts:
            raise DataError(
                f"{where} holds no {unit} for {part}; give a file of more, and different, {unit}s."
            )
    chosen = draw_rows(len(parts["train"][0]), rows).tolist()
    texts, labels = ([column[row] for row in chosen] for column in parts["train"])
    parts = {**parts, "train": (texts, labels)}
    fields = {
        "scores": ("balanced_accuracy",),
        "train_texts": tuple(texts),
        "test_texts": tuple(parts["test"][0]),
        "word_rule": rule,
        **fields,
    }
    if learn_tokenizer is not None:
        tokenizer = learn_tokenizer(texts)
        splits = {}
        for part in ("test", "validation", "train"):
            ids, valid, lengths = rows_of_tokens(tokenizer, parts[part][0], length, reads)
            splits[part] = Split(ids, torch.tensor(parts[part][1]), valid)
        fields["lengths"] = torch.tensor(lengths)  # of the training texts
        title = f"{title}, {'first' if reads == 'start' else 'last'} {length} tokens"
        return Dataset(title=title, tokenizer=tokenizer, **splits, **fields)
    cut = [words(text, rule) for text in texts]
    vocabulary = Vocabulary.build(cut, vocabulary_size)
    return Dataset(
        title=f"{title}, last {length} words",
        **{part: last_words(*rows, vocabulary, length, rule) for part, rows in parts.items()},
        vocabulary=vocabulary.words,
        lengths=torch.tensor([len(text) for text in cut]),
        **fields,
    )


def part_of(text: str) -> str:
    """Return which part a text belongs to."""
    return PARTS.get(sha1_of(text) % 10, "train")


STARS = 5
KEYS = (("rating", "text"), ("overall", "reviewText"))  # ours, and those of Ni et al. 2019


def star_reviews(lines: Iterable[bytes], where: str) -> Iterator[tuple[str, int]]:
    """Yield the text and the class, stars from 0, of each review that has a text; see `KEYS`."""
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            stars, text = next(
                (row[rating], row.get(text)) for rating, text in KEYS if rating in row
            )
            if stars not in range(1, STARS + 1) or not isinstance(text or "", str):
                raise ValueError("rating and text are not 1 to 5 and words")
        except (ValueError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise DataError(
                f"{where}, row {number}, is not a review ({str(error) or 'it has no rating'}); "
                'give lines of JSON such as {"rating": 5, "text": "Good."}.'
            ) from error
        if text and text.strip():
            yield text, int(stars) - 1


AMAZON = DataFile(
    path="text_classification/amazon_reviews/amazon_reviews.jsonl.xz",
    sha256="89ef3ad4ec7cac34703b04cad3591a05e66cd2e9e9964078feb5b3f5fd483326",
)
WOMENS_CLOTHING = DataFile(
    path="text_classification/womens_clothing_reviews/reviews.jsonl.xz",
    sha256="b9588d27ffd64ebef7dc516cd87778f40cb4ee30b0c5c0011bd4bb876a0c9635",
)


def amazon(
    *,
    length: int = 64,
    vocabulary_size: int = 40_000,
    path: str | None = None,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load reviews of one to five stars: a sample of 20,888, or the user's own file.

    A review is its words after a start token; the last `length` ids are kept, and shorter ones are
    padded in front. Titles are left out: many are the number of stars in words. More than half of
    the reviews give five stars, so balanced accuracy is a score too. By the sha1 of its text a
    tenth of the reviews are for the test and a tenth for validation. Words are ranked by frequency
    in the training rows alone.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        path: path of the user's own reviews, lines of JSON with "rating" and "text" or, as in the
            full set, "overall" and "reviewText"; plain, .gz or .xz. None uses the sample.
        rows: training rows that are kept at most; None takes all.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front

    Source: McAuley and Leskovec 2013; Blitzer et al. 2007; Zhang et al. 2015, arXiv:1509.01626; Ni
        et al. 2019, "Justifying Recommendations using Distantly-Labeled Reviews", EMNLP, whose full
        set is the paper's. The sample is of all four.
    """
    return _star_task(
        AMAZON if path is None else path,
        console,
        name="amazon",
        title="Amazon reviews, a sample" if path is None else "Amazon reviews of the user",
        source="Ni et al. 2019 and three more (research use; the texts belong to their authors)",
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )


def _star_task(
    reviews: DataFile | str, console: Console | None, name: str, **options: Any
) -> Dataset:
    """Return reviews of stars as a task; equal texts are in one part, which their sha1 decides."""
    check_counts(name, length=options["length"], rows=options["rows"])
    check_vocabulary_size(options["vocabulary_size"])
    if isinstance(reviews, DataFile):
        where, content = reviews.path, read(reviews, console=console).split(b"\n")[:-1]
    else:
        where, content = reviews, lines(reviews)
    parts: dict[str, tuple[list[str], list[int]]] = {
        part: ([], []) for part in ("train", "validation", "test")
    }
    for text, label in star_reviews(content, where):
        texts, labels = parts[part_of(text)]
        texts.append(text)
        labels.append(label)
    return dataset_of_texts(
        parts,
        where=where,
        unit="review",
        name=name,
        num_classes=STARS,
        class_names=tuple(str(star) for star in range(1, STARS + 1)),
        **options,
    )


def womens_clothing(
    *,
    length: int = 64,
    vocabulary_size: int = 20_000,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load 22,641 reviews of women's clothing, rows and parts as those of `amazon`.

    More than half of the reviews give five stars, so balanced accuracy is a score too.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        rows: training rows that are kept at most; None takes all.

    Source: "Women's E-Commerce Clothing Reviews", N. Brooks 2018, Kaggle.
    """
    return _star_task(
        WOMENS_CLOTHING,
        console,
        name="womens_clothing",
        title="Reviews of women's clothing",
        source="N. Brooks 2018, Kaggle (CC0)",
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )


PLACE = "text_classification/imdb"
ROWS = 25_000  # of each part, half of each label
VALIDATION = 0.1  # of the official training part
ARCHIVE = DataFile(
    path=f"{PLACE}/aclImdb_v1.tar.gz",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fa7008942e91923d1658bfe",
    urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
)
FILES = {
    part: DataFile(path=f"{PLACE}/{part}.jsonl.xz", sha256=sha256, converted=True)
    for part, sha256 in (
        ("train", "a8e26fc1b1508a9f6ddab7f84203c5bd4f4ca13241079daf7187ce4936764358"),
        ("test", "a17d3864569419dd31ba1b93004f9422507453612d58c5c6d2c606aff53eed16"),
    )
}
MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg)/(\d{1,5})_(\d{1,2})\.txt")
LABELS = {"neg": 0, "pos": 1}
PRESET = 1  # of xz: the file is written once on the user's machine, a good deal faster than 6


def imdb(
    *, length: int = 32, vocabulary_size: int = 20_000, console: Console | None = None
) -> Dataset:
    """Load the labelled IMDB reviews; a tenth of the training part is held out for validation.

    A review is its words (`vocabulary.words`; HTML breaks leave the word "br") after a start
    token; the last `length` ids are kept, and shorter reviews are padded in front. Words are
    ranked by frequency in the training rows alone.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown. The task
            has `len(dataset.vocabulary)` ids.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front

    Source: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis", ACL; tokens as in the
        IMDB set of Keras. Differs: that set ranks words in all 50,000 reviews and leaves id 3
        unused, where our words begin.
    """
    check_counts("imdb", length=length)
    check_vocabulary_size(vocabulary_size)  # before a download, not after
    texts, labels = _read_part(FILES["train"], console)
    train, validation = held_out(len(texts), VALIDATION)
    vocabulary = Vocabulary.build((words(texts[row]) for row in train.tolist()), vocabulary_size)
    official = last_words(texts, labels, vocabulary, length)
    return Dataset(
        name="imdb",
        title=f"IMDB film reviews, last {length} words",
        source="Maas et al. 2011 (research use; the texts belong to their authors)",
        train=official.take(train),
        validation=official.take(validation),
        test=last_words(*_read_part(FILES["test"], console), vocabulary, length),
        num_classes=2,
        class_names=tuple(LABELS),
        vocabulary=vocabulary.words,
    )


def _read_part(file: DataFile, console: Console | None) -> tuple[list[str], list[int]]:
    if locate(file.path) is None:
        _convert_archive(console)
    texts, labels = [], []
    try:
        for line in read(file).splitlines():  # of bytes: text would be cut at U+2028 too
            row = json.loads(line)
            texts.append(row["text"])
            labels.append(row["label"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"{locate(file.path)}, row {len(labels) + 1}, is not a review ({error}); delete the "
            "file and run again."
        ) from error
    counts = [labels.count(0), labels.count(1)]
    if counts != [ROWS // 2] * 2 or len(labels) != ROWS:
        raise DataError(
            f"{locate(file.path)} holds {counts[0]:,} negative and {counts[1]:,} positive reviews, "
            f"not {ROWS // 2:,} of each; delete it and run again."
        )
    return texts, labels


def _convert_archive(console: Console | None) -> None:
    temporary = locate(ARCHIVE.path) is None
    archive = read(ARCHIVE, console=console)
    status = console.status("converting the IMDB reviews") if console else contextlib.nullcontext()
    with status:
        for part, rows in _parse_archive(archive).items():
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
            target = cache() / FILES[part].path
            # the record first: a file without one would be refused for good
            with atomically(record(target)) as digest:
                digest.write_text(hashlib.sha256(content).hexdigest() + "\n", encoding="ascii")
            with atomically(target) as written:
                written.write_bytes(lzma.compress(content, preset=PRESET))
    if temporary:
        (cache() / ARCHIVE.path).unlink(missing_ok=True)


def _parse_archive(archive: bytes) -> dict[str, list[dict[str, int | str]]]:
    parts: dict[str, list[dict[str, int | str]]] = {"train": [], "test": []}
    name = "the archive of IMDB reviews"
    try:
        for match, text in members(archive, MEMBER, name):
            part, label, number, rating = match.groups()
            row = {"id": int(number), "label": LABELS[label], "rating": int(rating)}
            parts[part].append({**row, "text": text.decode()})
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is truncated or damaged ({error}).") from error
    for rows in parts.values():
        rows.sort(key=lambda row: (row["label"], row["id"]))
    return parts
