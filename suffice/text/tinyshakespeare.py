"""Tiny Shakespeare: a million characters of the plays, as one text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from suffice.data.find import DataFile, read
from suffice.text.documents import Corpus, Documents
from suffice.text.folder import cut
from suffice.text.plain import decoded

if TYPE_CHECKING:
    from rich.console import Console

FILE = DataFile(
    path="lm/tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    urls=(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
)


def tinyshakespeare(*, console: Console | None = None) -> Corpus:
    """Return the plays; the last tenth of the characters is for validation, as in nanoGPT.

    Args:
        console: where a download shows its progress; None shows nothing.

    Raises:
        DataError: if the file is absent and cannot be downloaded, truncated or altered.

    Source: A. Karpathy, char-rnn, 2015.
    """
    train, validation = cut(decoded(read(FILE, console=console), FILE.path))
    return Corpus(
        name="tinyshakespeare",
        source="W. Shakespeare, as collected by A. Karpathy (public domain)",
        train=Documents(name="tinyshakespeare, training", read=partial(iter, [train]), count=1),
        validation=Documents(
            name="tinyshakespeare, validation", read=partial(iter, [validation]), count=1
        ),
    )
