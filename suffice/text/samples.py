"""Samples of two large corpora of the web: a thousand documents of each, as lines of JSON."""

from __future__ import annotations

from functools import partial

from suffice.data.find import DataFile, read
from suffice.text.documents import Corpus, Documents, held_out
from suffice.text.jsonl import texts

OPENWEBTEXT = DataFile(
    path="lm/openwebtext_sample/owt_1000docs.jsonl.xz",
    sha256="c2c73810e4516716b50b54933423d0e00ab5d05471cc6bcf3262c87cd2c5ff02",
)
C4 = DataFile(
    path="lm/c4_sample/c4_1000docs.jsonl.xz",
    sha256="bd9ba069dd5dddf0f5fe301e92ef827ed539dd418aaa0031dc8825ac94bc2024",
)


def openwebtext_sample() -> Corpus:
    """Return a thousand pages of OpenWebText; a tenth is held out by text.

    Raises:
        DataError: if the file is absent, truncated or altered.

    Source: A. Gokaslan and V. Cohen 2019; documents of nanoGPT's validation set.
    """
    return _sample(
        "openwebtext_sample",
        OPENWEBTEXT,
        "OpenWebText, Gokaslan and Cohen 2019 (the pages belong to their authors)",
    )


def c4_sample() -> Corpus:
    """Return a thousand pages of C4; a tenth is held out by text.

    Raises:
        DataError: if the file is absent, truncated or altered.

    Source: Raffel et al. 2020, arXiv:1910.10683.
    """
    return _sample("c4_sample", C4, "C4, Raffel et al. 2020 (ODC-BY, Common Crawl's terms)")


def _sample(name: str, file: DataFile, source: str) -> Corpus:
    documents = list(texts(read(file).split(b"\n"), file.path))
    kept = [text for text in documents if not held_out(text)]
    held = [text for text in documents if held_out(text)]
    return Corpus(
        name=name,
        source=source,
        train=Documents(name=f"{name}, training", read=partial(iter, kept), count=len(kept)),
        validation=Documents(name=f"{name}, validation", read=partial(iter, held), count=len(held)),
    )
