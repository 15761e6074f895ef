"""A drawing in a file."""

from __future__ import annotations

from pathlib import Path

from suffice.errors import ConfigError
from suffice.files import replacing
from suffice.patterns import Pattern
from suffice.view.drawing import Drawing, draw
from suffice.view.png import png
from suffice.view.svg import svg


def picture(
    path: Path | str,
    pattern: Pattern,
    queries: int,
    keys: int | None = None,
    num_heads: int | None = None,
    *,
    title: str | None = None,
) -> Path:
    """Draw a pattern into a file: queries down, keys across, coloured by part.

    Args:
        path: of the file; its ending says what it becomes, .png or .svg.
        pattern: what to draw.
        queries: positions, tokens; they stand last among the keys.
        keys: positions, tokens; None = as many as queries.
        num_heads: None = as many as the pattern is made for, or one.
        title: None = the pattern as code.

    Raises:
        ConfigError: for another ending, a file that cannot be written, sizes that cannot be drawn.
    """
    return write(Path(path), draw(pattern, queries, keys, num_heads), title)


def write(path: Path, drawing: Drawing, title: str | None = None) -> Path:
    """Write a drawing into a .png or .svg file; return its path.

    Raises:
        ConfigError: for another ending, or a file that cannot be written.
    """
    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise ConfigError(f"a picture cannot be written to {path}: name a .png or .svg file.")
    content = png(drawing, title) if kind == ".png" else svg(drawing, title).encode()
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise ConfigError(
            f"a picture cannot be written to {path}: {error.strerror or error}; name a file in a "
            "folder that is there and may be written to."
        ) from error
    return path
