"""The seeded bugs: each changes a line or two so that results are wrong and nothing raises.

They are lines of JSON: `bugs.jsonl`; `meetings.jsonl` of bugs where features meet, past one piece
or chunk, in one direction or source of a figure; `twelve_files.jsonl` of ten bugs each in twelve
files that were new or of the rim, written before their tests were read. An entry finds its place by
a short text that occurs in its file exactly once. After sources are renamed or moved,
`python -m tools.mutants` lists the stale entries: update them, and keep the bug.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bug:
    """One bug.

    Args:
        file: path of the source file, from the root of the project.
        original: text that occurs in the file exactly once.
        replacement: text with the bug.
        tests: paths of the tests that should fail, separated by spaces; the doctests of a Python
            file run as well.
        effect: what goes wrong.
    """

    file: str
    original: str
    replacement: str
    tests: str
    effect: str

    @property
    def native(self) -> bool:
        """Whether the file has to be compiled."""
        return not self.file.endswith(".py")

    @property
    def test_paths(self) -> tuple[str, ...]:
        """The arguments of pytest."""
        return (*self.tests.split(), *(() if self.native else (self.file,)))


BUGS = tuple(
    Bug(**json.loads(line))
    for path in sorted(Path(__file__).parent.glob("*.jsonl"))
    for line in path.read_text("utf-8").splitlines()
)
