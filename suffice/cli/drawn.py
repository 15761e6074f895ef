"""The drawing of a mechanism, in the terminal and in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from suffice.cli.prose import write as write_paragraph
from suffice.errors import ConfigError
from suffice.view import drawing_of, expression, instead, lines, write
from suffice.view.looks import MORE, looks

if TYPE_CHECKING:
    from suffice import AttentionSpec

ROWS, DENSE_ROWS = 32, 16  # lines of cells; there is less to see where little is left out
INDENT = "  "


def titled(name: str, spec: AttentionSpec, length: int) -> str:
    """Return what stands above the picture of a mechanism.

    Example:
        >>> from suffice import preset
        >>> titled("standard", preset("standard", 64, 4), 9)
        'standard: Full()'
    """
    told = f"{name}: {expression(spec.pattern)}"
    if spec.mixing.keeps_keys:
        return told
    return f"{told} on {spec.mixing.reads(length):,} sums of {length:,} keys"


def print_drawing(console: Console, spec: AttentionSpec, length: int) -> None:
    """Print who sees whom as wide as the console allows; letters where it knows no blocks."""
    drawing = drawing_of(spec, length)
    drawn = lines(
        drawing,
        width=console.width - len(INDENT),
        rows=DENSE_ROWS if spec.pattern.dense else ROWS,
        unicode=_knows_blocks(console),
    )
    colours = ["", *(look.colour for look in looks(drawing.parts))]
    for line in drawn:
        told = Text(INDENT)
        for characters, number in line:
            told.append(characters, style=colours[number])
        told.rstrip()
        console.print(told, soft_wrap=True)
    for sentence in instead(spec, length):
        write_paragraph(console, sentence, first=INDENT, rest=INDENT)


def write_pictures(
    spec: AttentionSpec, length: int, title: str, paths: dict[str, Path | None]
) -> list[Path]:
    """Write the drawing into the files asked for and return them.

    Args:
        spec: what to draw.
        length: tokens.
        title: above the picture, before the pattern.
        paths: by the option that names them, such as "--png".

    Raises:
        ConfigError: for a file whose ending is not the option's, or that cannot be written.
    """
    wanted = {option: path for option, path in paths.items() if path is not None}
    for option, path in wanted.items():
        if path.suffix.lower() != f".{option[2:]}":
            raise ConfigError(f"{option} {path}: name a file that ends in .{option[2:]}.")
    if not wanted:
        return []
    drawing = drawing_of(spec, length)
    return [write(path, drawing, titled(title, spec, length)) for path in wanted.values()]


def _knows_blocks(console: Console) -> bool:
    try:
        f"{MORE}·".encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
