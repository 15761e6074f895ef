"""Text corpora and tokenizers by name or path, and rows of tokens cut from them."""

from __future__ import annotations

import inspect
import os
import platform
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suffice.data import TASKS, Dataset, Split
from suffice.data.dataset import check_counts, draw_rows
from suffice.data.files import DataFile, cache, locate, read
from suffice.errors import ConfigError, DataError, unknown
from suffice.text import tokenizer
from suffice.text.bpe import BPE, gpt2, llama
from suffice.text.documents import (
    Corpus,
    corpus_at,
    cut,
    decode_text,
    files_below,
    held_out,
    parse_jsonl,
    read_text,
    split,
    training_texts,
    validation_texts,
)
from suffice.text.tokenizer import Tokenizer
from suffice.text.words import Characters, words_or_characters

if TYPE_CHECKING:
    from rich.console import Console


OPENWEBTEXT = DataFile(
    path="lm/openwebtext_sample/owt_1000docs.jsonl.xz",
    sha256="c2c73810e4516716b50b54933423d0e00ab5d05471cc6bcf3262c87cd2c5ff02",
)
C4 = DataFile(
    path="lm/c4_sample/c4_1000docs.jsonl.xz",
    sha256="bd9ba069dd5dddf0f5fe301e92ef827ed539dd418aaa0031dc8825ac94bc2024",
)


# documents of nanoGPT's validation set
OPENWEBTEXT_SOURCE = "OpenWebText, Gokaslan and Cohen 2019 (the pages belong to their authors)"
C4_SOURCE = "C4, Raffel et al. 2020 (ODC-BY, Common Crawl's terms)"


def _sample(name: str, file: DataFile, source: str) -> Corpus:
    """Return a thousand pages; a tenth is held out by text."""
    documents = list(parse_jsonl(read(file).split(b"\n"), file.path))
    train = [text for text in documents if not held_out(text)]
    return Corpus.of(name, source, train, list(filter(held_out, documents)))


# Not the library itself: tests, which some distributions leave out, and what users install.
WITHOUT = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload")
)
GENERATED = "_sysconfigdata"  # begins the name of a file that describes how this Python was built


def stdlib() -> Corpus:
    """Return the modules of the running Python's standard library, a document each.

    They come in the order of their names, without tests and without installed packages.
    A tenth is held out by name, so that a module is in the same part in every version of Python,
    whose text it has; one whose text is held out under another name too is left out of training.
    """
    root = Path(sysconfig.get_path("stdlib"))
    below = files_below(root, WITHOUT) if root.is_dir() else []
    names = [name for name in below if name.endswith(".py") and GENERATED not in name]
    if not names:
        raise DataError(
            f"this Python has no sources of its standard library (none below {root}); name "
            "another corpus or give a folder of text."
        )
    train, validation = split(names)
    return Corpus.of(
        "stdlib",
        f"standard library of Python {platform.python_version()} (PSF licence)",
        partial(training_texts, root, train, validation),
        partial(validation_texts, root, validation),
        counts=(len(train), len(validation)),
    )


SHAKESPEARE = DataFile(
    path="lm/tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    urls=(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
)


def tinyshakespeare(*, console: Console | None = None) -> Corpus:
    """Return the plays; the last tenth of the characters is for validation, as in nanoGPT."""
    train, validation = cut(decode_text(read(SHAKESPEARE, console=console), SHAKESPEARE.path))
    source = "W. Shakespeare, as collected by A. Karpathy (public domain)"
    return Corpus.of("tinyshakespeare", source, [train], [validation])


PLACE = "lm/wikitext2"
VALIDATION = DataFile(
    path=f"{PLACE}/wiki.valid.txt.xz",
    sha256="f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
)
TEST = DataFile(
    path=f"{PLACE}/wiki.test.txt.xz",
    sha256="d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
)
TRAIN = (f"{PLACE}/wiki.train.txt.xz", f"{PLACE}/wiki.train.txt")

# Of an article, between blank lines; of a section it has more signs.
HEADING = re.compile(r"(?:\A \n|(?<=\n \n)) = (?!=).* = \n(?= \n)")


def wikitext2() -> Corpus:
    """Return the official parts, a document for each article; nothing of the text is left out.

    The validation and test parts are needed; the training part is read where the user has it, and a
    pass over it is a DataError elsewhere.

    Source: Merity et al. 2016, arXiv:1609.07843.
    """
    validation, test = (articles(decode_text(read(f), f.path)) for f in (VALIDATION, TEST))
    source = "Merity et al. 2016 (Wikipedia, CC BY-SA 3.0)"
    return Corpus.of("wikitext2", source, _wikitext2_training, validation, test)


def articles(text: str) -> list[str]:
    r"""Cut a part at the headings of its articles; joined again they are the part.

    Example:
        >>> articles(" \n = One = \n \n text \n = 1 = \n more \n \n = Two = \n \n text \n")
        [' \n = One = \n \n text \n = 1 = \n more \n \n', ' = Two = \n \n text \n']
    """
    starts = sorted({0, *(match.start() for match in HEADING.finditer(text)), len(text)})
    return [text[start:end] for start, end in pairwise(starts)]


def _wikitext2_training() -> Iterator[str]:
    path = next((at for at in map(locate, TRAIN) if at is not None), None)
    if path is None:
        raise DataError(
            f"wikitext2 has no training part on this machine; put it at {cache() / TRAIN[1]}, or "
            "train on another corpus and use this one's validation and test parts to evaluate."
        )
    yield from articles(read_text(path))


CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib,
    "tinyshakespeare": tinyshakespeare,
    "wikitext2": wikitext2,
    "openwebtext_sample": lambda: _sample("openwebtext_sample", OPENWEBTEXT, OPENWEBTEXT_SOURCE),
    "c4_sample": lambda: _sample("c4_sample", C4, C4_SOURCE),
}

PLAIN_NAME = re.compile(r"\w+")


def corpus(name_or_path: str | Path, *, console: Console | None = None) -> Corpus:
    """Return a corpus by its name, or the user's own text by its path.

    A text equal to a key of `CORPORA` is that set, found below $SUFFICE_DATA, then in the user's
    cache. Anything else is a path: a folder, a file of text, .jsonl or .jsonl.xz (`corpus_at`). A
    plain name of which there is no such path may also be a folder of the user's own at
    lm/<name> below $SUFFICE_DATA or in the cache.

    Args:
        name_or_path: a key of `CORPORA`, or the path of the text.
    """
    if isinstance(name_or_path, str) and name_or_path in CORPORA:
        build = CORPORA[name_or_path]
        takes = inspect.signature(build).parameters
        return build(console=console) if "console" in takes else build()
    path = Path(name_or_path)
    if os.path.exists(path):  # Path.exists raises for names too long
        return corpus_at(path)
    if isinstance(name_or_path, Path) or not PLAIN_NAME.fullmatch(name_or_path):
        raise DataError(
            f"there is no corpus at {path}; give an existing folder of text, .txt, .jsonl or "
            f".jsonl.xz, or one of {', '.join(CORPORA)}."
        )
    folder = locate(f"lm/{name_or_path}")
    if folder is None:
        raise unknown("corpus", name_or_path, [*CORPORA, "the path of a text or folder"])
    return corpus_at(folder)


corpus_of = corpus  # for functions with an argument of that name


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Return the tokenizer that `save(folder)` wrote, whichever it was.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Characters.of("hello").save(folder)
        ...     load_tokenizer(folder).encode("hole")
        [1, 3, 2, 0]
    """
    text, description, begin, end = tokenizer.read(folder)
    if (known := words_or_characters(description)) is not None:
        return known
    return BPE(text, begin=begin, end=end, name=Path(folder) / tokenizer.DESCRIPTION)


LLAMA = ("tokenizers/llama/tokenizer.json", "tokenizers/llama/tokenizer.bin")


def choose_tokenizer(
    name: str,
    corpus: Corpus,
    *,
    vocabulary_size: int | None = None,
    console: Console | None = None,
) -> Tokenizer:
    """Return a tokenizer made for a corpus, or one that exists.

    Args:
        name: "characters", all that occur in the corpus; "bpe", byte pairs learned from its
            training part; "gpt2"; "llama", found below $SUFFICE_DATA or in the cache; or a path:
            the folder of a saved tokenizer, or a file of a Llama model.
    """
    if (name == "bpe") != (vocabulary_size is not None):
        raise ConfigError(
            f"tokenizer {name!r} with vocabulary_size={vocabulary_size}; give one to 'bpe', which "
            "learns that many, and none to others."
        )
    if name == "characters":
        return Characters.of(text for part in (corpus.train, corpus.validation) for text in part)
    if name == "bpe":
        return BPE.train(corpus.train, vocabulary_size, console)
    if name == "gpt2":
        return gpt2(console=console)
    path = Path(name)
    if name == "llama":
        located = next(filter(None, map(locate, LLAMA)), None)
        if located is None:
            raise DataError(
                f"there is no Llama tokenizer at {cache() / LLAMA[0]}; put the tokenizer.json of a "
                "Llama model there, or name its file or another tokenizer."
            )
        path = located
    if path.is_dir():
        return load_tokenizer(path)
    if path.is_file():
        return llama(path)
    raise ConfigError(
        f"there is no tokenizer {name!r}; give characters, bpe, gpt2, llama, the folder of a saved "
        "tokenizer or a file of a Llama model."
    )


TRAINING_ROWS = 10  # of a part that is cut, for one of validation


def text(
    *,
    corpus: str = "tinyshakespeare",
    tokenizer: str = "characters",
    vocabulary_size: int | None = None,
    length: int = 64,
    rows: int | None = None,
    test_rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Cut a corpus into rows; the label of each token is the next one.

    The documents of a part follow each other, with the tokenizer's end between them where it has
    one, and are cut every `length` tokens; a rest at the end is dropped. The last tenth of the
    rows of the training part is for validation. The test is that of the corpus, or where it has
    none, its validation part, which nothing else reads.

    Args:
        corpus: name or path of the corpus, see `suffice.text.corpus`.
        tokenizer: see `choose_tokenizer`.
        length: tokens of a row, >= 1.
        rows: training rows that are kept at most, drawn by a fixed permutation; None takes all.
        test_rows: the same for the test, and for validation.

    Shapes:
        inputs, labels: int64 [N, length]
    """
    check_counts("text", length=length, rows=rows, test_rows=test_rows)
    documents = corpus_of(corpus, console=console)
    encoder = choose_tokenizer(
        tokenizer, documents, vocabulary_size=vocabulary_size, console=console
    )
    learned = _split(documents.train, encoder, length, corpus)
    count = len(learned) // TRAINING_ROWS
    if not count:
        raise DataError(
            f"text: {corpus} has {len(learned)} training rows of {length} tokens, of which a tenth "
            "is for validation; give a longer corpus or a smaller length."
        )
    first = len(learned) - count
    test = _split(documents.test or documents.validation, encoder, length, corpus)
    return Dataset(
        name="text",
        title=f"{documents.name} in rows of {length} tokens",
        source=documents.source,
        train=learned.take(draw_rows(first, rows)),
        validation=learned.take(first + draw_rows(count, test_rows)),
        test=test.take(draw_rows(len(test), test_rows)),
        num_classes=encoder.vocabulary_size,
        tokenizer=encoder,
        scores=("perplexity",),
    )


def _split(documents: Iterable[str], tokenizer: Tokenizer, length: int, corpus: str) -> Split:
    end = [] if tokenizer.end is None else [tokenizer.end]
    joined = chain.from_iterable([*ids, *end] for ids in tokenizer.encode_many(documents))
    ids: Tensor = torch.tensor(list(joined))
    count = (len(ids) - 1) // length
    if count < 1:
        raise DataError(
            f"text: a part of {corpus} has {len(ids)} tokens, too few for a row of {length} and "
            "the token after it; give a longer corpus or a smaller length."
        )
    inputs, labels = (ids[at : at + count * length].view(count, length) for at in (0, 1))
    return Split(inputs.clone(), labels.clone())


TASKS["text"] = text
