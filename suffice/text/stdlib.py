"""The corpus that every machine has: the sources of Python's standard library."""

from __future__ import annotations

import platform
import sysconfig
from functools import partial
from pathlib import Path

from suffice.errors import DataError
from suffice.text.documents import Corpus, Documents
from suffice.text.folder import files_below, held_texts, kept_texts, split

# Not the library itself: tests, which some distributions leave out, and what users install.
WITHOUT = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload")
)
GENERATED = "_sysconfigdata"  # starts the name of a file that tells how this Python was built


def stdlib() -> Corpus:
    """Return the modules of the running Python's standard library, a document each.

    They come in the order of their names, without tests and without what is installed beside
    them. A tenth is held out by name, so that a module is in the same part in every version of
    Python, whose text it has. A module whose text is held out under another name too is left out
    of training.

    Raises:
        DataError: if this Python comes without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    below = files_below(root, WITHOUT) if root.is_dir() else []
    names = [name for name in below if name.endswith(".py") and GENERATED not in name]
    if not names:
        raise DataError(
            f"this Python has no sources of its standard library (none below {root}); name "
            "another corpus or give a folder of text."
        )
    kept, held = split(names)
    return Corpus(
        name="stdlib",
        source=f"standard library of Python {platform.python_version()} (PSF licence)",
        train=Documents(
            name="stdlib, training", read=partial(kept_texts, root, kept, held), count=len(kept)
        ),
        validation=Documents(
            name="stdlib, validation", read=partial(held_texts, root, held), count=len(held)
        ),
    )
