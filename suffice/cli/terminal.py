"""Text for a terminal: docstrings taken apart, paragraphs that fill its width."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from torch.distributed import is_torchelastic_launched

from suffice.errors import SufficeError
from suffice.train import Progress

if TYPE_CHECKING:
    from suffice.text import Tokenizer


ARGUMENT = re.compile(r" {4}\*{0,2}\w+: ")
SECTION = re.compile(r"(Args|Shapes|Returns|Raises|Example|Cost|Source):")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a mechanism's docstring says to people.

    Args:
        paragraphs: the prose, each in one line.
        arguments: name and meaning of each in the section "Args".
        cost: the section "Cost".
        source: the section "Source".
    """

    paragraphs: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    cost: str
    source: str

    @property
    def identifier(self) -> str:
        """The shortest name of the source: its arXiv number where it has one."""
        found = re.search(r"arXiv:\d+\.\d+", self.source)
        return found.group() if found else self.source

    @property
    def citation(self) -> str:
        """Authors, year and identifier, without the section."""
        head, found, _ = self.source.partition(self.identifier)
        return head + found


def describe(thing: object) -> Description:
    """Take the docstring of a function apart."""
    paragraphs: list[str] = []
    sections: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for block in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        for line in block.splitlines():
            begins = SECTION.match(line)
            if begins:
                lines = sections.setdefault(begins.group(1), [])
                line = line[begins.end() :]
            if lines is not None:
                lines.append(line)
        if lines is None:
            paragraphs.append(_join(block.splitlines()))
    return Description(
        paragraphs=tuple(filter(None, paragraphs)),
        arguments=tuple(_arguments(sections.get("Args", []))),
        cost=_join(sections.get("Cost", [])),
        source=_join(sections.get("Source", [])).rstrip("."),
    )


def write(console: Console, text: str, *, first: str = "", rest: str = "") -> None:
    """Print a paragraph that fills the width of the console; words are never broken.

    Args:
        console: where to.
        text: the paragraph.
        first: in front of its first line.
        rest: in front of the others.
    """
    filled = textwrap.fill(
        text,
        width=max(console.width, 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(filled or first.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Return name and meaning of each argument: deeper lines go on with the one above."""
    begins = [at for at, line in enumerate(lines) if ARGUMENT.match(line)]
    for first, after in pairwise([*begins, len(lines)]):
        name, _, told = _join(lines[first:after]).partition(": ")
        yield name.lstrip("*"), told


def _join(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


C = TypeVar("C", bound=Callable[..., None])

WRONG = 2  # a value, a file or a machine that does not serve
INTERRUPTED = 130  # 128 + SIGINT


class Stopped(Exception):  # noqa: N818 - an end, not always an error
    """The program ends here.

    Args:
        told: what stderr says.
        code: the exit code.
    """

    def __init__(self, told: str, *, code: int) -> None:
        super().__init__(told)
        self.code = code


def stoppable(command: C) -> C:
    """Make Ctrl-C in a command a Stopped: typer would end without a word."""

    @functools.wraps(command)
    def wrapped(*args: object, **options: object) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            raise Stopped("interrupted.", code=INTERRUPTED) from None

    return wrapped


@contextlib.contextmanager
def telling(command: str, folder: Path) -> Iterator[None]:
    """Say how to go on when the block is interrupted or fails and its folder keeps what was done.

    Args:
        command: what goes on.
        folder: of what is kept.
    """
    kept = f"What was done is kept. Go on with:\n  {command}"
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Stopped(f"\ninterrupted. {kept}", code=INTERRUPTED) from interrupt
    except SufficeError as error:
        if not folder.exists():
            raise  # nothing was done yet
        raise Stopped(f"error: {error}\n{kept}", code=WRONG) from error


def is_first() -> bool:
    """Return whether this process is the first that torchrun started, or the only one."""
    return not is_torchelastic_launched() or os.environ.get("RANK", "0") == "0"


def as_cells(progress: Progress) -> Callable[[str, int, int], None]:
    """Return what is told (part, done, total) and shows each part of the work as a cell."""
    doing: list[str] = []

    def step(what: str, done: int, total: int) -> None:
        if what not in doing:
            doing.append(what)
            progress.cell(what)
        progress.step(done, total)

    return step


HALF = "\N{REPLACEMENT CHARACTER}"  # a decoder's word for bytes that are no letter yet
LONGEST = 4  # bytes of a letter


class Shown:
    """Writes text as soon as its letters are whole.

    A token may be part of a letter, and how a token is spelled may depend on the one before it, so
    text is decoded from a little earlier on and what was written already is left out.

    Args:
        tokenizer: of the tokens.
        before: tokens the text goes on from; they are not written.
        write: takes pieces of text.
    """

    def __init__(self, tokenizer: Tokenizer, before: list[int], write: Callable[[str], object]):
        self.tokenizer, self.write = tokenizer, write
        self.held = before[-LONGEST:]
        self.told = tokenizer.decode(self.held)

    def add(self, token: int) -> None:
        """Write what this token makes whole."""
        self.held.append(token)
        text = self.tokenizer.decode(self.held)
        if not text.endswith(HALF) or len(text) - len(self.told) > LONGEST:
            self._go_on(text)
            self.held = self.held[-LONGEST:]
            self.told = self.tokenizer.decode(self.held)

    def close(self) -> None:
        """Write what never became whole."""
        self._go_on(self.tokenizer.decode(self.held))

    def _go_on(self, text: str) -> None:
        self.write(text[len(self.told) :])
        self.told = text


def program() -> list[str]:
    """Return the words that started this program, ready to be typed again."""
    if is_torchelastic_launched():
        name = shutil.which("torchrun")
        torchrun = ["torchrun"] if name else [sys.executable, "-m", "torch.distributed.run"]
        workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
        return [*torchrun, "--nproc-per-node", workers, "-m", "suffice"]
    given = Path(sys.argv[0])
    if given.name == "__main__.py":
        return [_short("python", Path(sys.executable)), "-m", "suffice"]
    return [_short("suffice", given)]


def again(folder: Path) -> str:
    """Return the command that goes on with what `folder` holds."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if "--out" not in words and not any(word.startswith("--out=") for word in words):
        words += ["--out", str(folder)]
    return shlex.join([*program(), *words, "--resume"])


def given() -> str:
    """Return the command that was given, for the results."""
    return shlex.join(["suffice", *sys.argv[1:]])


def _short(name: str, path: Path) -> str:
    """Return the bare name where the shell finds the same file by it, else the path."""
    found = shutil.which(name)
    return name if found is not None and Path(found).absolute() == path.absolute() else str(path)
