"""`--help` of every verb, word by word; `python -m tests.meta.test_help` writes it anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from suffice.cli import SIBLINGS, VERBS

pytestmark = pytest.mark.lint

STORED = Path(__file__).with_name("help.txt")
CODE = """
import sys
from suffice.cli import main

for words in {lines}:
    print("$", *words, flush=True)
    sys.argv = words
    try:
        main()
    except SystemExit:
        pass
"""


def helps(verbs: Iterable[str] = VERBS) -> str:
    lines = [["suffice", "--help"], *(["suffice", verb, "--help"] for verb in verbs)]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    code = CODE.format(lines=lines)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    return run.stdout.decode()


def by_verb(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^\$ suffice (\S+).*\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_help_is_as_stored():
    brought = {entry.name for entry in entry_points(group="suffice.verbs")}
    verbs = [verb for verb in VERBS if verb in brought or verb not in SIBLINGS]
    stored = by_verb(STORED.read_text("utf-8"))
    assert by_verb(helps(verbs)) == {name: stored[name] for name in ["--help", *verbs]}


if __name__ == "__main__":
    STORED.write_text(helps(), "utf-8")
