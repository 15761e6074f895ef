"""Run transformers' own ModelTesterMixin and GenerationTesterMixin against our classes.

`python -m tests.hf.upstream FOLDER [pytest options]`, where FOLDER is a source tree of the
installed version of transformers, or what its source package on PyPI holds, which lacks some
files: those are stood in for by empty classes, and this says so. Nothing of it is copied.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers

HERE = Path(__file__).resolve().parent
STAND_INS = {
    "tests/generation/test_utils.py": "GenerationTesterMixin",
    "tests/exporters/test_export.py": "ExportTesterMixin",
}


def main() -> int:
    """Link the tree, stand in for what it lacks, and hand over to pytest."""
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "tests/test_modeling_common.py").is_file():
        print("give TRANSFORMERS_SRC, a folder with tests/test_modeling_common.py")  # noqa: T201
        return 2
    source = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "src").mkdir()
        (tree / "src" / "transformers").symlink_to(Path(transformers.__file__).parent)
        (tree / "utils").mkdir()
        (tree / "utils" / "__init__.py").touch()
        _link(source / "tests", tree / "tests")
        (tree / "tests" / "__init__.py").touch()
        for path, name in STAND_INS.items():
            if not (source / path).is_file():
                print(f"not in {source}: {path}; its tests are not run")  # noqa: T201
                _stand_in(tree / path, name)
        (tree / "tests" / "test_suffice.py").write_text((HERE / "classes.py").read_text())
        here = os.pathsep.join((folder, str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")))
        words = ["tests/test_suffice.py", "-p", "no:cacheprovider", "-q", "-rs", *sys.argv[2:]]
        return subprocess.call(
            [sys.executable, "-m", "pytest", "--rootdir", folder, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": here, "HF_HUB_OFFLINE": "1"},
        )


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.name != "__init__.py" and path.name not in ("generation", "exporters"):
            (target / path.name).symlink_to(path)
        elif path.is_dir():
            _link(path, target / path.name)


def _stand_in(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(f"class {name}:\n    pass\n")


if __name__ == "__main__":
    raise SystemExit(main())
