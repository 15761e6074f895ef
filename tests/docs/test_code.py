"""Every block of code in a page that is written by hand runs and prints what it shows."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from docs import build
from suffice.cli import main
from suffice.kernels import Kernel
from suffice.ops.native import library
from suffice.patterns import Pattern

DOCS = Path(build.__file__).resolve().parent
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if build.MADE not in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {"huggingface.md": "transformers", "export.md": "onnxruntime"}
OWN = ((Pattern, "Powers"), (Kernel, "Softplus"))  # values that pages define


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Nothing that a page finds or writes lies outside the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    torch.manual_seed(0)
    yield tmp_path
    for family, name in OWN:
        family.table.pop(name, None)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page, folder, monkeypatch, capfd):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason=f"{page} needs {NEEDS[page]}")
    if page == "flash.md" and not library.available():
        pytest.skip(f"the page shows the plan where there are kernels; here {library.why_not()}")
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for language, code in BLOCK.findall(text):
        assert language in ("python", "sh", "text"), f"a block of {language or 'no language'!r}"
        if language == "python":
            assert_it_prints_what_it_shows(page, code, names)
        if language == "sh":
            for line in code.splitlines():
                assert_the_program_takes(line, monkeypatch, capfd)


def assert_it_prints_what_it_shows(page, code, names):
    test = doctest.DocTestParser().get_doctest(code, names, page, page, 0)
    assert test.examples, f"no examples in {code!r}"
    said = []
    result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, "".join(said)


def assert_the_program_takes(line, monkeypatch, capfd):
    words = shlex.split(line)
    assert words[0] == "suffice", f"{line!r} is not run by this test: make it a block of text"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None), f"{line}: {capfd.readouterr().err}"
