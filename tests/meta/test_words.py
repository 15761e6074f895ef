"""Docstrings and messages in English that a stranger can read: counts that may only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.meta.packages import FILES, ROOT

pytestmark = pytest.mark.lint

HEADLESS = re.compile(
    r"(of|for|from|that|which|as|how|where|what|whose|to|in|by|with|before|after|beside|likewise|at"
    r"|on|between|per|when|so|until|the same|one for|None =)\b"
)
"""How an entry begins that does not say what its argument is: "eps: of the norms"."""
FORMS = {
    "is no X": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!(?:more|longer|less|fewer|other)\b)\w",
    "so many": r"\bso many\b",
    "of its own": r"\bof its own\b",
    "beside": r"\bbeside\b(?!s)",
    "likewise": r"\blikewise\b",
    "anew": r"\banew\b",
    "None = X": r"None = (?![A-Za-z_]*[\[(])[a-z][a-z' ]+[.;]",
}
LIMITS = {
    "headless": 13,
    "is no X": 0,
    "so many": 1,
    "of its own": 7,
    "beside": 3,
    "likewise": 0,
    "anew": 0,
    "None = X": 10,
}
"""How often each form occurs at most; lower a limit when a form is repaired."""


@cache
def sources() -> dict[str, str]:
    """Return the text of every module, by path."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in FILES}


def entries(docstring: str) -> Iterator[str]:
    """Yield what the Args section of a docstring says of each argument."""
    section = re.search(r"^( *)Args:\n((?:\1 .*\n?)+)", docstring, re.MULTILINE)
    if section is not None:
        margin = len(section[1]) + 4
        pattern = rf"^ {{{margin}}}\*{{0,2}}\w+: (.*)"
        yield from re.findall(pattern, section[2], re.MULTILINE)


def headless(source: str) -> list[str]:
    """Return the entries without a noun."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, nodes)
    )
    return [entry for text in docstrings for entry in entries(text) if HEADLESS.match(entry)]


def test_an_entry_without_a_noun_is_recognised():
    text = '"""Norms.\n\nArgs:\n    eps: of the norms.\n    bias: whether there is one.\n"""\n'
    assert headless(text) == ["of the norms."]


@pytest.mark.parametrize("form", ["headless", *FORMS])
def test_forms_that_a_native_speaker_would_not_write_become_fewer(form):
    counts = Counter(
        {
            file: len(headless(text) if form == "headless" else re.findall(FORMS[form], text))
            for file, text in sources().items()
        }
    )
    worst = ", ".join(f"{file} {count}" for file, count in counts.most_common(5))
    assert counts.total() <= LIMITS[form], f"{form}: {counts.total()} ({worst})"
