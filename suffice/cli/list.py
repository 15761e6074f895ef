"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.cli.options import JsonFlag, catalogue
from suffice.cli.terminal import RULED, print_json, print_next, print_paragraph

NUMBERS = ("parameters", "params", "FLOPs", "state")

Columns = dict[str, list[str]]


def list_mechanisms(as_json: JsonFlag = False) -> None:
    """List the mechanisms: axes, cost next to standard, source."""
    known = catalogue()
    if as_json:
        print_json(known)
        return
    console = Console(highlight=False)
    rows = known["mechanisms"]
    layouts = _layouts(rows)
    columns = next((c for c in layouts if _width(c) <= console.width), layouts[-1])
    wide = Console(width=max(console.width, _width(columns)), highlight=False)
    for number, name in enumerate(dict.fromkeys(row["group"] for row in rows)):
        if number:
            wide.print()
        wide.print(name, style="bold", markup=False)
        wide.print(_table(columns, [row["group"] == name for row in rows]))
    console.print()
    print_paragraph(
        console,
        f"Per layer at d_model {known['d_model']}, {known['heads']} heads, {known['length']} "
        "tokens; x: times standard; FLOPs: of the blocks that an op "
        "computes; KV cache: numbers stored when streaming, per past token unless "
        "fixed (`suffice show` counts both).",
    )
    print_next("suffice show NAME", console=console)


def _layouts(rows: list[dict[str, Any]]) -> list[Columns]:
    def column(form: str) -> list[str]:
        return [form.format_map(row | {"mflops": row["flops"] / 1e6}) for row in rows]

    names = {"mechanism": column("{name}")}
    ends = {**names, "axes": column("{axes}")}
    counts = {
        "parameters": column("{parameters:,} ({parameters_ratio:.2f}x)"),
        "FLOPs": column("{mflops:.1f}M ({flops_ratio:.2f}x)"),
    }
    ratios = {"params": column("{parameters_ratio:.2f}x"), "FLOPs": column("{flops_ratio:.2f}x")}
    state = {"state": column("{state}")}
    number = {"source": column("{identifier}")}
    return [
        {**ends, **counts, **state, "source": column("{source}")},
        {**ends, **counts, **state, "source": column("{citation}")},
        {**ends, **counts, **state, **number},
        {**ends, **ratios, **state, **number},
        {**ends, **ratios, **state},
        {**names, **ratios, **state, **number},
        {**names, **ratios, **state},
        {**names, **ratios},
    ]


def _table(columns: Columns, visible: list[bool] | None = None) -> Table:
    table = Table(**RULED, padding=(0, 1, 0, 0))
    for name, cells in columns.items():
        table.add_column(
            name,
            justify="right" if name in NUMBERS else "left",
            no_wrap=True,
            min_width=max(map(len, [name, *cells])),
        )
    rows = list(zip(*columns.values(), strict=True))
    for row, is_visible in zip(rows, visible or [True] * len(rows), strict=True):
        if is_visible:
            table.add_row(*map(Text, row))
    return table


def _width(columns: Columns) -> int:
    return Console(width=10_000).measure(_table(columns)).maximum
