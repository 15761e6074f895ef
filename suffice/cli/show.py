"""`suffice show`: one mechanism, its spec, its cost, who sees whom and which op runs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from suffice.cli import options as completed
from suffice.cli.list import axes, sized, state
from suffice.cli.options import settings
from suffice.cli.terminal import describe, write
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.presets import PRESETS
from suffice.view import drawing_of, expression, instead, lines
from suffice.view import write as write_picture
from suffice.view.drawing import MORE, looks

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
        write(console, sentence, first=INDENT, rest=INDENT)


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
    return [write_picture(path, drawing, titled(title, spec, length)) for path in wanted.values()]


def _knows_blocks(console: Console) -> bool:
    try:
        f"{MORE}·".encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def show(
    mechanism: Annotated[
        str, typer.Argument(help="Name, see `suffice list`.", autocompletion=completed.mechanisms)
    ],
    d_model: Annotated[int, typer.Option(help="Features.")] = 256,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens.")] = 64,
    batch: Annotated[int, typer.Option(help="Samples, for the choice of products.")] = 1,
    causal: Annotated[bool, typer.Option("--causal", help="No look-ahead.")] = False,
    layer: Annotated[
        int | None, typer.Option(help="Number of the layer from 0, where layers differ.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another option of the mechanism, such as window=16.",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw into this .png file, too.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw into this .svg file, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spec as JSON only.")] = False,
) -> None:
    """Show one mechanism: what it is, its spec, its counts, who sees whom and its op plan."""
    if length < 1 or batch < 1:
        raise ConfigError(f"--length {length} --batch {batch}: give at least 1 of each.")
    options = {"causal": causal, **settings(mechanism, given or []), **_layer(mechanism, layer)}
    spec = sized(mechanism, d_model, heads, length=length, **options)
    pictures = write_pictures(spec, length, mechanism, {"--png": png, "--svg": svg})
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(spec.to_json(), indent=1))
        console = Console(highlight=False, stderr=True)
    else:
        base = sized("standard", d_model, heads, length=length, causal=causal)
        _print(console, mechanism, spec, base, length, batch)
    for path in pictures:
        console.print(f"picture: {path}", markup=False, soft_wrap=True)


def _print(
    console: Console,
    mechanism: str,
    spec: AttentionSpec,
    base: AttentionSpec,
    length: int,
    batch: int,
) -> None:
    """Print everything about a mechanism, beside standard attention of the same sizes."""
    about = describe(PRESETS[mechanism])
    console.print(f"{mechanism}: {axes(spec)}\n", style="bold", markup=False, soft_wrap=True)
    for paragraph in about.paragraphs:
        write(console, paragraph)
        console.print()
    write(console, about.cost, first="cost    ", rest=" " * 8)
    write(console, about.source, first="source  ", rest=" " * 8)
    console.print(f"\nspec (--json for {mechanism} as data)", markup=False, soft_wrap=True)
    _rows(console, _fields(spec))
    console.print(f"\none layer, one sample of {length} tokens")
    _rows(console, _counts(spec, base, length))
    console.print("\nwho sees whom\n")
    print_drawing(console, spec, length)
    console.print(f"\nop plan for {batch} of {length} tokens")
    for line in Attention(spec, device="meta").eval().explain(length, batch=batch).splitlines():
        write(console, line, first="  ", rest="    ")


def _rows(console: Console, told: dict[str, str]) -> None:
    for name, value in told.items():
        write(console, value, first=f"  {name:<18}", rest=" " * 20)


def _layer(mechanism: str, layer: int | None) -> dict[str, int]:
    """Return the option that names a layer, for a mechanism whose layers differ."""
    if layer is None:
        return {}
    build = PRESETS.get(mechanism)
    if build is not None and "layer" not in inspect.signature(build).parameters:
        raise ConfigError(f"--layer {layer}: every layer of {mechanism} is the same; omit it.")
    return {"layer": layer}


def _counts(spec: AttentionSpec, base: AttentionSpec, length: int) -> dict[str, str]:
    """Return what one layer costs."""
    cost, plain = spec.cost(length), base.cost(length)
    return {
        "parameters": f"{cost.parameters:,} ({cost.parameters / plain.parameters:.2f}x standard)",
        "FLOPs": f"{cost.flops:,} ({cost.flops / plain.flops:.2f}x standard)",
        "of visible pairs": f"{cost.visible_flops:,}",
        "streaming state": state(cost, " numbers per token", " numbers for any length"),
    }


def _fields(spec: AttentionSpec) -> dict[str, str]:
    """Return every field of a spec as it was decided, defaults filled in."""
    values = {
        "pattern": expression(spec.pattern),
        "encoder": spec.encoder,
        "mixing": spec.mixing,
        "past": spec.past,
        "kernel": spec.kernel,
        "norm": spec.norm,
        "position": spec.position,
        "d_model": spec.d_model,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.kv_heads,
        "head_dim": spec.head_width,
        "scale": f"{spec.score_scale:.6g}",
        "bias": spec.bias,
        "dropout": spec.dropout,
    }
    return {name: str(value) for name, value in values.items()}
