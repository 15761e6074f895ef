from __future__ import annotations

import io

import pytest
from rich.console import Console

from suffice.cli.terminal import print_paragraph
from suffice.presets import PRESETS
from suffice.view.catalogue import describe


def sample():
    """A sentence
    over two lines.

    A second paragraph: with a colon.

    Args:
        a: not for people who choose.

        b: after an empty line.

    Cost: much
        and more.
    Source: Somebody 2020, arXiv:2001.01234v2, section 3.

    Raises:
        ConfigError: never.
    """


def test_a_docstring_is_taken_apart():
    told = describe(sample)
    assert told.paragraphs == (
        "A sentence over two lines.",
        "A second paragraph: with a colon.",
    )
    assert told.cost == "much and more."
    assert told.source == "Somebody 2020, arXiv:2001.01234v2, section 3"
    assert told.identifier == "arXiv:2001.01234"
    assert told.citation == "Somebody 2020, arXiv:2001.01234"


def test_what_is_not_said_is_empty():
    def plain():
        """One line."""

    told = describe(plain)
    assert (told.paragraphs, told.cost, told.source) == (("One line.",), "", "")
    assert describe(lambda: None).paragraphs == ()


def test_a_source_without_a_number_names_itself():
    def book():
        """Source: Knuth 1968, volume 1."""

    assert describe(book).identifier == describe(book).citation == "Knuth 1968, volume 1"


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_mechanism_has_all_parts(name):
    told = describe(PRESETS[name])
    assert len(told.paragraphs) >= 2
    assert told.cost
    assert told.identifier.startswith("arXiv:")


def written(text, width, **options):
    console = Console(file=io.StringIO(), width=width)
    print_paragraph(console, text, **options)
    return console.file.getvalue()


def test_text_fills_the_width():
    assert written("one two three four", 24) == "one two three four\n"
    assert written("one two three four [b]five[/b] six", 20, first="- ", rest="  ") == (
        "- one two three four\n  [b]five[/b] six\n"
    )
