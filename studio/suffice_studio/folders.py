"""The folders that the studio may open, and nothing outside them.

The page names a folder by its number and a name below it; a name that leads outside, by dots, an
absolute path or a link, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suffice.errors import ConfigError, DataError
from suffice.utils.records import is_whole

LEVELS = 4  # of folders inside each other that are searched


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders that the studio may open.

    Raises:
        ConfigError: for a path that is not a folder.
    """

    results: tuple[Path, ...] = ()  # folders of comparisons, or folders that contain such folders
    # a folder of a model, or one that contains such folders; None: no models
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        options = [("--results", folder) for folder in self.results]
        options += [("--checkpoints", self.checkpoints)] if self.checkpoints else []
        for option, folder in options:
            if not folder.is_dir():
                raise ConfigError(f"{option} {folder} is not a folder; give one that exists.")


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield as `os.walk` from a resolved folder, with relative paths, without hidden folders."""
    for path, folders, files in os.walk(root):
        relative = Path(path).relative_to(root)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield relative, folders, files
        if len(relative.parts) >= LEVELS:
            folders.clear()


def below(root: Path, name: object) -> Path:
    """Return the path of a name below a folder, "." for the folder itself."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise DataError(f"{name!r:.80} is not a name; choose from the list.")
    try:
        inside = root.resolve(strict=True)
        path = (inside / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # half a surrogate is not a name
        raise DataError(f"{name!r:.200} does not exist; choose from the list.") from error
    if not path.is_relative_to(inside):
        raise DataError(f"{name:.200} is outside the folders of this studio; choose another.")
    return path


def numbered(roots: tuple[Path, ...], number: object) -> Path:
    """Return the folder of a number; raises `DataError` for a number out of range."""
    if not is_whole(number, least=0) or number >= len(roots):  # type: ignore[operator]
        raise DataError(f"folder {number!r:.40} was not chosen; choose from the list.")
    return roots[number]  # type: ignore[index]
