"""What a layer reads beyond weights of pairs is one answer of its spec: few files ask the axes."""

from __future__ import annotations

import ast

import pytest

from tests.meta.packages import FILES, ROOT

pytestmark = pytest.mark.lint

FLAGS = {  # attribute: what it is read of, and the most files that may; lower it, never raise it
    "weighs_pairs": ("kernel", 0),
    "recurrent": ("kernel", 0),
    "mixes": ("mixing", 1),
    "reads": ("past", 1),
    "shares": ("spec", 24),
}


def files_that_read() -> dict[str, list[str]]:
    """Return the files with `<owner>.<flag>` by flag, where an owner may be an attribute itself."""
    reading = {flag: [] for flag in FLAGS}
    for path in FILES:
        read = {
            (node.attr, ast.unparse(node.value).rsplit(".")[-1])
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute) and node.attr in FLAGS
        }
        for flag, (owner, _) in FLAGS.items():
            if (flag, owner) in read:
                reading[flag].append(str(path.relative_to(ROOT)))
    return reading


def test_no_further_file_reads_a_flag_of_an_axis():
    for flag, files in files_that_read().items():
        assert len(files) <= FLAGS[flag][1], (flag, files)
