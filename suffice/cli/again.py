"""The command that goes on with an interrupted comparison."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from torch.distributed import is_torchelastic_launched


def program() -> list[str]:
    """Return the words that started this program, ready to be typed again."""
    if is_torchelastic_launched():
        name = shutil.which("torchrun")
        torchrun = ["torchrun"] if name else [sys.executable, "-m", "torch.distributed.run"]
        workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
        return [*torchrun, "--nproc-per-node", workers, "-m", "suffice"]
    given = Path(sys.argv[0])
    if given.name == "__main__.py":
        return [_short("python", Path(sys.executable)), "-m", "suffice"]
    return [_short("suffice", given)]


def again(folder: Path) -> str:
    """Return the command that goes on with what `folder` holds."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if "--out" not in words and not any(word.startswith("--out=") for word in words):
        words += ["--out", str(folder)]
    return shlex.join([*program(), *words, "--resume"])


def given() -> str:
    """Return the command that was given, for the results."""
    return shlex.join(["suffice", *sys.argv[1:]])


def _short(name: str, path: Path) -> str:
    """Return the bare name where the shell finds the same file by it, else the path."""
    found = shutil.which(name)
    return name if found is not None and Path(found).absolute() == path.absolute() else str(path)
