"""`--help` of every verb, word by word; `python -m tests.meta.test_help` writes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suffice.cli import VERBS

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


def helps() -> str:
    lines = [["suffice", "--help"], *(["suffice", verb, "--help"] for verb in VERBS)]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    code = CODE.format(lines=lines)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    return run.stdout.decode()


def test_help_is_as_stored():
    assert helps() == STORED.read_text("utf-8")


if __name__ == "__main__":
    STORED.write_text(helps(), "utf-8")
