"""Every block of code in a hand-written page runs and prints the output it shows."""

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
from suffice.ops.dispatch import MEASURED
from suffice.ops.native import library
from suffice.patterns import Pattern
from tests.few_digits import use_few_digits

DOCS = Path(build.__file__).resolve().parent
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if build.MADE not in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REQUIRED = {
    "accelerate.md": "transformers",
    "huggingface.md": "transformers",
    "export.md": "onnxruntime",
}
DEFINED = (
    (Pattern, "Powers"),
    (Kernel, "Softplus"),
    (Kernel, "ReluSquared"),
    (Kernel, "Sigmoid"),
)  # classes that pages define


@pytest.fixture
def folder(tmp_path, monkeypatch, brief):
    """An empty working folder without data sets, where comparisons train on few digits."""
    monkeypatch.chdir(tmp_path)
    use_few_digits(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    torch.manual_seed(0)
    tables = {family: dict(family.table) for family, _ in DEFINED}
    for family, name in DEFINED:
        family.table.pop(name, None)  # other tests may define one of this name
    yield tmp_path
    for family, table in tables.items():
        family.table.clear()
        family.table.update(table)


@pytest.mark.parametrize(
    # exporting to ONNX is compiled in tests/export
    "page",
    [pytest.param(p, marks=pytest.mark.slow) if p == "export.md" else p for p in PAGES],
)
def test_code_of_page_runs_and_prints_its_output(page, folder, monkeypatch, capfd):
    if page in REQUIRED:
        pytest.importorskip(REQUIRED[page], reason=f"{page} needs {REQUIRED[page]}")
    if page == "flash.md" and not (library.available() and library.instructions() in MEASURED):
        pytest.skip("the page shows the plan of native kernels that were measured")
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for language, code in BLOCK.findall(text):
        assert language in ("python", "sh", "text"), f"a block of {language or 'no language'!r}"
        if language == "python":
            assert_prints_its_output(page, code, names)
        if language == "sh":
            for line in code.splitlines():
                assert_command_succeeds(line, monkeypatch, capfd)


def assert_prints_its_output(page, code, names):
    test = doctest.DocTestParser().get_doctest(code, names, page, page, 0)
    assert test.examples, f"no examples in {code!r}"
    output: list[str] = []
    result = doctest.DocTestRunner().run(test, out=output.append, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, "".join(output)


def assert_command_succeeds(line, monkeypatch, capfd):
    words = shlex.split(line)
    assert words[0] == "suffice", f"{line!r} is not run by this test: make it a block of text"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (None, 0, 10, 11, 12), f"{line}: {capfd.readouterr().err}"
