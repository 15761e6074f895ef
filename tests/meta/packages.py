"""The packages of this repository: suffice, and its siblings with a `pyproject.toml` each."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIBLINGS = [path.parent for path in sorted(ROOT.glob("*/pyproject.toml"))]
PACKAGES = [
    path.parent
    for folder in (ROOT, *SIBLINGS)
    for path in sorted(folder.glob("suffice*/__init__.py"))
]
FILES = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
TOOLS = sorted((ROOT / "tools").rglob("*.py"))
TESTS = [
    *(path for folder in (ROOT, *SIBLINGS) for path in sorted((folder / "tests").rglob("*.py"))),
    *(path for path in TOOLS if path.name.startswith("test_")),
]


def module_name(path: Path) -> str:
    """Return the name by which a file of `PACKAGES` is imported."""
    package = next(package for package in PACKAGES if path.is_relative_to(package))
    parts = path.with_suffix("").relative_to(package.parent).parts
    return ".".join(parts).removesuffix(".__init__")
