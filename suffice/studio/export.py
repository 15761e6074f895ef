"""The calculator and the patterns as a page that needs no server."""

from __future__ import annotations

from pathlib import Path

from suffice.errors import ConfigError
from suffice.files import replacing
from suffice.studio.page import bundle


def export(folder: Path | str) -> Path:
    """Write the static page into a folder and return its file.

    It opens from a disk or inside another page, loads nothing and computes everything itself.

    Args:
        folder: made where it is absent.

    Raises:
        ConfigError: if it cannot be written.
    """
    path = Path(folder) / "index.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(bundle(served=False).html, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror or error}); give a folder that can be written."
        ) from error
    return path
