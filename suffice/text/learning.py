"""Learning a byte-pair vocabulary, in sight and open to Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING

from suffice.errors import ConfigError, DataError, StateError
from suffice.text import learner
from suffice.text.library import library
from suffice.text.progress import counting, number_of
from suffice.text.tokenizer import check_text

if TYPE_CHECKING:
    from rich.console import Console

END = "<|endoftext|>"
BYTES = 256
MOST = 1 << 20  # tokens; the library sets memory aside for what is asked
SEEN = 2  # times a pair must occur

# Finds modules where this process does; Ctrl-C is this process's to hear.
PROGRAM = (
    "import json, runpy, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_path(sys.argv[2])['main'](*sys.argv[3:])"
)


def learn(texts: Iterable[str], vocabulary_size: int, console: Console | None) -> str:
    """Return the description of a byte-level tokenizer in the library's format.

    While the library learns it hears nothing, neither Ctrl-C nor an error of the texts, and a
    thread cannot be ended. So it works in a process of its own, which is handed text by text.

    Args:
        texts: documents to learn from.
        vocabulary_size: how many ids there will be.
        console: where to show the progress; None shows nothing.

    Raises:
        ConfigError: if an argument is not legal, or the tokenizers library is not installed.
        DataError: if the texts do not hold that many pairs that occur often enough.
        StateError: if the process cannot be started or fails.
    """
    _check(vocabulary_size)
    library()
    total = number_of(texts)
    with _started(vocabulary_size) as process:
        _hand(process.stdin, texts, total, console)
        with console.status("learning pairs") if console else contextlib.nullcontext():
            description = process.stdout.read().decode()
        ended = process.wait()
    if ended or not description:
        raise StateError(
            f"the process that learns a vocabulary failed (code {ended}); what it said stands "
            "above."
        )
    found = len(json.loads(description)["model"]["vocab"])
    if found < vocabulary_size:
        raise DataError(
            f"the texts give {found:,} tokens, not {vocabulary_size:,}: no other pair occurs "
            f"{SEEN} times; ask for {found:,} or give more text."
        )
    return description


def _check(vocabulary_size: int) -> None:
    whole = isinstance(vocabulary_size, int) and not isinstance(vocabulary_size, bool)
    if not whole or not BYTES < vocabulary_size <= MOST:
        raise ConfigError(
            f"vocabulary_size={vocabulary_size!r} is not legal; give an integer of {BYTES + 1} "
            f"(the bytes and {END}) to {MOST:,}."
        )


@contextlib.contextmanager
def _started(vocabulary_size: int) -> Iterator[subprocess.Popen[bytes]]:
    """Give the process that learns; it does not outlive the block."""
    words = [
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps([str(place) for place in sys.path]),
        learner.__file__,
    ]
    words += [str(vocabulary_size), str(SEEN), END]
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise StateError(
            f"cannot start Python to learn a vocabulary ({error}); sys.executable is "
            f"{sys.executable!r}."
        ) from error
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()


def _hand(pipe: IO[bytes], texts: Iterable[str], total: int, console: Console | None) -> None:
    """Put each text into a pipe and close it; stop where nobody reads."""
    with counting(console, "reading", total) as advance:
        characters = 0
        for text in texts:
            check_text(text)
            characters += len(text)
            if not _sent(pipe.write, learner.framed(text)):
                break
            advance(1, f"{characters:,} characters")
    _sent(pipe.close)


def _sent(act: Callable[..., object], *arguments: bytes) -> bool:
    """Return whether somebody still reads the pipe that is acted on."""
    try:
        act(*arguments)
    except BrokenPipeError:
        return False
    return True
