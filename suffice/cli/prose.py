"""Text for a terminal: docstrings taken apart, paragraphs that fill its width."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console

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
