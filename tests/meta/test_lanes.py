"""What a layer reads beyond weights of pairs is one answer of its spec: few files ask the axes."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "suffice"
FLAGS = {  # attribute: what it is read of, and the most files that may; lower it, never raise it
    "weighs_pairs": ("kernel", 0),
    "recurrent": ("kernel", 0),
    "mixes": ("mixing", 1),
    "reads": ("past", 1),
    "shares": ("spec", 23),
}


def files_that_read(flag: str, owner: str) -> list[str]:
    """Return the files with `<owner>.<flag>`, where the owner may be an attribute itself."""
    return [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(
            isinstance(node, ast.Attribute)
            and node.attr == flag
            and ast.unparse(node.value).rsplit(".")[-1] == owner
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    ]


def test_no_further_file_reads_a_flag_of_an_axis():
    for flag, (owner, most) in FLAGS.items():
        files = files_that_read(flag, owner)
        assert len(files) <= most, (flag, files)
