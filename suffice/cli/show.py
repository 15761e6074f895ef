"""`suffice list`: the mechanisms with their axes, cost and source; `suffice show`: one of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from suffice.cli import options
from suffice.cli.options import JsonFlag, mechanism_settings
from suffice.cli.terminal import RULED, print_json, print_next, print_paragraph, print_text
from suffice.errors import ConfigError
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec

ROWS, DENSE_ROWS = 32, 16  # of a drawing; patterns that leave out little need fewer
INDENT = "  "
REFUSED = "not "  # begins a line of an op that is not taken
NUMBERS = ("parameters", "params", "FLOPs", "state")
NAMES = {"mechanism": "{name}"}
AXES = {**NAMES, "axes": "{axes}"}
COUNTS = {
    "parameters": "{parameters:,} ({parameters_ratio:.2f}x)",
    "FLOPs": "{mflops:.1f}M ({flops_ratio:.2f}x)",
}
RATIOS = {"params": "{parameters_ratio:.2f}x", "FLOPs": "{flops_ratio:.2f}x"}
STATE = {"state": "{state}"}
LAYOUTS = (
    {**AXES, **COUNTS, **STATE, "source": "{source}"},
    {**AXES, **COUNTS, **STATE, "source": "{identifier}"},
    {**AXES, **RATIOS, **STATE, "source": "{identifier}"},
    {**AXES, **RATIOS, **STATE},
    {**NAMES, **RATIOS, **STATE},
    {**NAMES, **RATIOS},
)
"""Columns of the list, the widest first."""


def list_mechanisms(as_json: JsonFlag = False) -> None:
    """List the mechanisms: axes, cost next to standard, source."""
    known = options.catalogue()
    if as_json:
        print_json(known)
        return
    console = Console(highlight=False)
    rows = known["mechanisms"]
    groups = dict.fromkeys(row["group"] for row in rows)
    for layout in LAYOUTS:
        tables = [_table(layout, rows, group) for group in groups]
        width = max(Console(width=10_000).measure(table).maximum for table in tables)
        if width <= console.width:
            break
    wide = Console(width=max(console.width, width), highlight=False)
    for group, table in zip(groups, tables, strict=True):
        wide.print(group, style="bold", markup=False)
        wide.print(table)
        wide.print()
    print_paragraph(
        console,
        f"Per layer at d_model {known['d_model']}, {known['heads']} heads, {known['length']} "
        "tokens; x: times standard; FLOPs: of the blocks that an op "
        "computes; KV cache: numbers stored when streaming, per past token unless "
        "fixed (`suffice show` counts both).",
    )
    print_next("suffice show NAME", console=console)


def _table(layout: dict[str, str], rows: list[dict[str, Any]], group: str) -> Table:
    table = Table(**RULED, padding=(0, 1, 0, 0))
    cells = [
        [form.format_map(row | {"mflops": row["flops"] / 1e6}) for row in rows]
        for form in layout.values()
    ]
    for name, column in zip(layout, cells, strict=True):
        side = "right" if name in NUMBERS else "left"
        width = max(map(len, [name, *column]))  # the same in every group
        table.add_column(name, justify=side, no_wrap=True, min_width=width)
    for row, values in zip(rows, zip(*cells, strict=True), strict=True):
        if row["group"] == group:
            table.add_row(*map(Text, values))
    return table


def show(
    mechanism: Annotated[str, Argument(help="Name, see `suffice list`.", **options.A_MECHANISM)],
    d_model: Annotated[int, Option(help="Width of the layer.")] = 256,
    heads: Annotated[int, Option(help="Query heads.")] = 4,
    length: Annotated[int, Option(help="Length of the input, tokens.")] = 64,
    causal: Annotated[bool, Option("--causal", help="Attend to no later token.")] = False,
    layer: Annotated[
        int | None, Option(help="Number of the layer from 0, if layers differ.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        options.set_option("Another option of the mechanism, such as window=16; repeatable."),
    ] = None,
    svg: Annotated[Path | None, Option(help="Also draw into this .svg file.")] = None,
    flow: Annotated[Path | None, Option(help="Draw the data flow into this .svg file.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the spec as JSON only.")] = False,
) -> None:
    """Show one mechanism: description, data flow, spec, counts, attention pattern and op plan."""
    from suffice.presets import PRESETS, is_always_causal
    from suffice.view import drawing_of, write
    from suffice.view.catalogue import sized

    causal = causal or (mechanism in PRESETS and is_always_causal(mechanism))
    options.check_at_least(1, length=length)
    extra = mechanism_settings(mechanism, settings or []) | _layer(mechanism, layer)
    spec = sized(mechanism, d_model, heads, length=length, causal=causal, **extra)
    pictures = []
    if svg is not None:
        pictures.append(write(svg, drawing_of(spec, length), titled(mechanism, spec, length)))
    if flow is not None:
        pictures.append(_write_flow(spec, length, mechanism, flow))
    console = Console(highlight=False)
    if as_json:
        print_json(spec.to_json())
        console = Console(highlight=False, stderr=True)
    else:
        base = sized("standard", d_model, heads, length=length, causal=causal)
        _print(console, mechanism, spec, base, length)
    for path in pictures:
        print_text(f"picture: {path}", console)


def _print(
    console: Console, mechanism: str, spec: AttentionSpec, base: AttentionSpec, length: int
) -> None:
    from suffice.layers import Attention
    from suffice.presets import PRESETS
    from suffice.view.catalogue import axes, describe
    from suffice.view.flow import flow as data_flow
    from suffice.view.flow import flow_text

    about = describe(PRESETS[mechanism])
    console.print(f"{mechanism}: {axes(spec)}\n", style="bold", markup=False, soft_wrap=True)
    for paragraph in about.paragraphs:
        print_paragraph(console, paragraph)
        console.print()
    print_paragraph(console, about.cost, first="cost    ", rest=" " * 8)
    print_paragraph(console, about.source, first="source  ", rest=" " * 8)
    console.print("\nwhat is computed")
    for line in flow_text(data_flow(spec, length)):
        words = line if _knows(console, line) else line.translate(ASCII)
        print_paragraph(console, words, first="  ", rest=" " * 11)
    console.print(f"\nspec (--json for {mechanism} as data)", markup=False, soft_wrap=True)
    _rows(console, _fields(spec))
    console.print(f"\none layer, one sample of {length} tokens")
    _rows(console, _counts(spec, base, length))
    console.print("\nattention pattern\n")
    drawn = max(length, 3 * spec.past.segment) if "past" in spec.beyond_pairs else length
    print_drawing(console, spec, drawn)
    console.print(f"\nop plan for one input of {length} tokens")
    plan = Attention(spec, device="meta").eval().explain(length, batch=1).splitlines()
    others = [line for line in plan if line.startswith(REFUSED)]
    for line in plan:
        if line not in others:
            print_paragraph(console, line, first="  ", rest="    ")
    if others:
        call = f"Attention(spec).eval().explain({length})"
        words = f"{call} says why none of the {len(others)} other ops"
        print_paragraph(console, words, first="  ", rest="    ")


def _write_flow(spec: AttentionSpec, length: int, mechanism: str, path: Path) -> Path:
    from suffice.presets import TITLES
    from suffice.view import flow, flow_svg

    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--flow {path}: name a file that ends in .svg.")
    write_atomic(path, flow_svg(flow(spec, length), TITLES.get(mechanism, mechanism)))
    return path


def _rows(console: Console, values: dict[str, str]) -> None:
    for name, value in values.items():
        print_paragraph(console, value, first=f"  {name:<18}", rest=" " * 20)


def _layer(mechanism: str, layer: int | None) -> dict[str, int]:
    from suffice.presets import PRESETS

    if layer is None:
        return {}
    build = PRESETS.get(mechanism)
    if build is not None and "layer" not in inspect.signature(build).parameters:
        raise ConfigError(f"--layer {layer}: every layer of {mechanism} is the same; leave it out.")
    return {"layer": layer}


def _counts(spec: AttentionSpec, base: AttentionSpec, length: int) -> dict[str, str]:
    from suffice.view.catalogue import state

    cost, plain = spec.cost(length), base.cost(length)
    return {
        "parameters": f"{cost.parameters:,} ({cost.parameters / plain.parameters:.2f}x standard)",
        "FLOPs": f"{cost.flops:,} ({cost.flops / plain.flops:.2f}x standard)",
        "of visible pairs": f"{cost.visible_flops:,}",
        "KV cache": state(cost, " numbers per token", " numbers for any length"),
    }


def _fields(spec: AttentionSpec) -> dict[str, str]:
    from suffice.view import expression

    names = ("encoder", "mixing", "past", "kernel", "norm", "position", "d_model", "num_heads")
    values = {name: getattr(spec, name) for name in names}
    values |= {"num_kv_heads": spec.kv_heads, "head_dim": spec.head_width}
    values |= {"scale": f"{spec.score_scale:.6g}", "bias": spec.bias, "dropout": spec.dropout}
    return {"pattern": expression(spec.pattern)} | {n: str(value) for n, value in values.items()}


def titled(name: str, spec: AttentionSpec, length: int) -> str:
    """Return the title of a mechanism's picture.

    Example:
        >>> from suffice import preset
        >>> titled("standard", preset("standard", 64, 4), 9)
        'standard: Full()'
    """
    from suffice.view import expression

    title = f"{name}: {expression(spec.pattern)}"
    if spec.mixing.keeps_keys:
        return title
    return f"{title} on {spec.mixing.reads(length):,} sums of {length:,} keys"


def print_drawing(console: Console, spec: AttentionSpec, length: int) -> None:
    """Draw the pattern as wide as the console allows; in letters if it has no block characters."""
    from suffice.view import drawing_of, instead, lines
    from suffice.view.drawing import MORE, cell_styles

    drawing = drawing_of(spec, length)
    rendered = lines(
        drawing,
        width=console.width - len(INDENT),
        rows=DENSE_ROWS if spec.pattern.dense else ROWS,
        unicode=_knows(console, f"{MORE}·"),
    )
    colours = ["", *(style.colour for style in cell_styles(drawing.parts))]
    for line in rendered:
        text = Text(INDENT)
        for characters, number in line:
            text.append(characters, style=colours[number])
        text.rstrip()
        console.print(text, soft_wrap=True)
    for sentence in instead(spec, length):
        print_paragraph(console, sentence, first=INDENT, rest=INDENT)


ASCII = str.maketrans(
    {"Σ": "sum ", "φ": "phi", "ᵀ": "^T", "√": "sqrt ", "×": "x", "λ": "lambda", "₁": "1", "₂": "2"}
)


def _knows(console: Console, words: str) -> bool:
    try:
        words.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
