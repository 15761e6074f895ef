"""A type checker finds no errors in code as users write it: README, pages and examples."""

from __future__ import annotations

import json
import subprocess
import sys
from doctest import DocTestParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.test_code import BLOCK

ROOT = Path(__file__).resolve().parents[2]
CHECKER = "basedpyright"
# calls of transformers' own models do not pass either
OF_TRANSFORMERS = {
    "docs/accelerate.md",
    "docs/huggingface.md",
    "docs/examples/own_trainer.md",
    "examples/own_trainer.py",
}
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.relative_to(ROOT).as_posix() not in OF_TRANSFORMERS
]

pytestmark = [
    pytest.mark.lint,
    pytest.mark.skipif(find_spec(CHECKER) is None, reason=f"{CHECKER} is not installed"),
]


def errors_of(folder):
    """The errors of a user's files, as sentences."""
    settings = {
        "typeCheckingMode": "basic",
        "extraPaths": [str(ROOT)],
        "reportMissingImports": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = (sys.executable, "-m", CHECKER, "--outputjson", "--pythonpath", sys.executable)
    result = subprocess.run(
        [*command, "--project", str(folder)], capture_output=True, text=True, check=False
    )
    found = json.loads(result.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def test_code_of_the_documents_and_examples_has_no_errors(tmp_path):
    for page in PAGES:
        blocks = [
            code
            for language, code in BLOCK.findall(page.read_text("utf-8"))
            if language == "python"
        ]
        lines = [line.source for code in blocks for line in DocTestParser().get_examples(code)]
        name = "_".join(page.relative_to(ROOT).with_suffix(".py").parts)
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    for example in (ROOT / "examples").glob("*.py"):
        if example.relative_to(ROOT).as_posix() in OF_TRANSFORMERS:
            continue
        (tmp_path / example.name).write_bytes(example.read_bytes())
    assert errors_of(tmp_path) == []


def test_wrong_code_has_errors(tmp_path):
    """The public names have types, so that a mistake is found before it runs."""
    code = """
        import suffice
        from suffice.patterns import Causal
        spec = suffice.AttentionSpec(d_model=64, num_heads="8", pattern=Causal())
        layer = suffice.Attention(spec, devise="cpu")
        layer(3)
        suffice.preset("standard", 64, 4).patern
        spec.cost(length=32).parameters.upper()
    """
    (tmp_path / "user.py").write_text(
        "\n".join(map(str.strip, code.splitlines())), encoding="utf-8"
    )
    lines = [error.split(":")[1] for error in errors_of(tmp_path)]
    assert lines == ["4", "5", "7", "8"]
