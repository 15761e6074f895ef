"""The files that DESIGN.md names for a comparison are those that one enters."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import suffice
from tests.few_digits import use_few_digits

DESIGN = Path(__file__).resolve().parents[2] / "DESIGN.md"
PACKAGE = Path(suffice.__file__).parent
FOLDERS = ("cli", "data", "comparison", "train")
WORDS = (
    "compare",
    "--task",
    "digits",
    "--mechanisms",
    "standard,efficient",
    "--seeds",
    "1",
    "--jobs",
    "1",
)
OPTIMISED = 0x1  # flag of the code of functions, which the bodies of classes lack


def named() -> set[str]:
    """Return the files of the paragraph, its braces written out."""
    text = DESIGN.read_text()
    (walk,) = re.findall(r"^`suffice compare --task digits`.*?\n\n", text, re.M | re.S)
    return {
        f"{folder}/{name.strip()}.py"
        for folder, names in re.findall(r"([a-z/]+)/\{([^}]*)\}", walk)
        for name in names.split(",")
    }


def test_a_comparison_enters_the_files_that_the_design_names(tmp_path, monkeypatch):
    from suffice.cli import main

    monkeypatch.chdir(tmp_path)
    use_few_digits(monkeypatch)
    entered = set()

    def note(frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_flags & OPTIMISED and code.co_name[0] != "<":
            entered.add(code.co_filename)

    for run, profile in (("first", None), ("second", note)):  # the first imports
        monkeypatch.setattr(
            "sys.argv", ["suffice", *WORDS, "--epochs", "1", "--out", run, "--quiet"]
        )
        sys.setprofile(profile)
        with suppress(SystemExit):
            main()
        sys.setprofile(None)
    paths = {Path(name) for name in entered if name.endswith(".py") and "__init__" not in name}
    inside = {p.relative_to(PACKAGE) for p in paths if p.is_relative_to(PACKAGE)}
    assert {path.as_posix() for path in inside if path.parts[0] in FOLDERS} == named()
