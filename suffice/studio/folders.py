"""The folders a user chose, and nothing outside them.

The page names a folder by its place in the list and a name below it; a name that leads elsewhere,
by dots, by an absolute path or by a link, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffice.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Folders:
    """What the studio may open.

    Args:
        results: folders with results of comparisons, or with such folders.
        checkpoints: a folder of a trained model, or with such folders; None = none.

    Raises:
        ConfigError: for one that is no folder.
    """

    results: tuple[Path, ...] = ()
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        given = [("--results", folder) for folder in self.results]
        given += [("--checkpoints", self.checkpoints)] if self.checkpoints else []
        for option, folder in given:
            if not folder.is_dir():
                raise ConfigError(f"{option} {folder} is no folder; give one that is there.")


def below(root: Path, name: object) -> Path:
    """Return what a name means below a folder.

    Args:
        root: the folder that was chosen.
        name: as the page asks for it, "." for the folder itself.

    Raises:
        DataError: for a name that is no text, is not there, or leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise DataError(f"{name!r:.80} names nothing; choose from the list.")
    try:
        inside = root.resolve(strict=True)
        found = (inside / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{name:.200} is not there; choose from the list.") from error
    if not found.is_relative_to(inside):
        raise DataError(f"{name:.200} lies outside the folders that were chosen; choose another.")
    return found


def rooted(roots: tuple[Path, ...], place: object) -> Path:
    """Return the chosen folder that a number from the page means.

    Raises:
        DataError: for another number.
    """
    legal = isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(roots)
    if not legal:
        raise DataError(f"folder {place!r:.40} was not chosen; choose from the list.")
    return roots[place]  # type: ignore[index]
