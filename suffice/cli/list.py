"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.cli.mechanism import GROUPS, axes, group, sized, state
from suffice.cli.prose import Description, describe, write
from suffice.presets import PRESETS

D_MODEL, HEADS, LENGTH = 256, 4, 1024
NUMBERS = ("parameters", "params", "FLOPs", "state")

Columns = dict[str, list[str]]


def list_mechanisms() -> None:
    """List the mechanisms: axes, cost beside standard, source."""
    console = Console(highlight=False)
    lines = sorted(map(_line, PRESETS), key=lambda line: GROUPS.index(line.group))
    layouts = _layouts(lines)
    columns = next((c for c in layouts if _width(c) <= console.width), layouts[-1])
    wide = Console(width=max(console.width, _width(columns)), highlight=False)
    for number, name in enumerate(dict.fromkeys(line.group for line in lines)):
        if number:
            wide.print()
        wide.print(name, style="bold", markup=False)
        wide.print(_table(columns, [line.group == name for line in lines]))
    console.print()
    write(
        console,
        f"Per layer at d_model {D_MODEL}, {HEADS} heads, {LENGTH} tokens; x: times what standard "
        "needs; state: numbers kept when streaming, per past token unless fixed (`suffice show` "
        "counts both).",
    )


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One mechanism, every detail that some width has room for."""

    name: str
    group: str
    axes: str
    parameters: tuple[str, str]
    flops: tuple[str, str]
    state: str
    about: Description


def _line(name: str) -> _Line:
    base = sized("standard", D_MODEL, HEADS, length=LENGTH).cost(LENGTH)
    spec = sized(name, D_MODEL, HEADS, length=LENGTH)
    cost = spec.cost(LENGTH)
    return _Line(
        name=name,
        group=group(spec),
        axes=axes(spec),
        parameters=(f"{cost.parameters:,}", f"{cost.parameters / base.parameters:.2f}x"),
        flops=(f"{cost.flops / 1e6:.1f}M", f"{cost.flops / base.flops:.2f}x"),
        state=f"{cost.state_numbers:,} + fixed"
        if cost.state_numbers and cost.state_fixed
        else state(cost),
        about=describe(PRESETS[name]),
    )


def _layouts(lines: list[_Line]) -> list[Columns]:
    """Return the columns of ever narrower tables: detail goes, words stay whole."""
    names = {"mechanism": [line.name for line in lines]}
    ends = {**names, "axes": [line.axes for line in lines]}
    counts = {
        "parameters": [f"{line.parameters[0]} ({line.parameters[1]})" for line in lines],
        "FLOPs": [f"{line.flops[0]} ({line.flops[1]})" for line in lines],
    }
    ratios = {
        "params": [line.parameters[1] for line in lines],
        "FLOPs": [line.flops[1] for line in lines],
    }
    kept = {"state": [line.state for line in lines]}
    number = {"source": [line.about.identifier for line in lines]}
    return [
        {**ends, **counts, **kept, "source": [line.about.source for line in lines]},
        {**ends, **counts, **kept, "source": [line.about.citation for line in lines]},
        {**ends, **counts, **kept, **number},
        {**ends, **ratios, **kept, **number},
        {**ends, **ratios, **kept},
        {**names, **ratios, **kept, **number},
        {**names, **ratios, **kept},
        {**names, **ratios},
    ]


def _table(columns: Columns, shown: list[bool] | None = None) -> Table:
    """Return a table of the rows shown, its columns as wide as all rows need."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, cells in columns.items():
        table.add_column(
            name,
            justify="right" if name in NUMBERS else "left",
            no_wrap=True,
            min_width=max(map(len, [name, *cells])),
        )
    rows = list(zip(*columns.values(), strict=True))
    for row, here in zip(rows, shown or [True] * len(rows), strict=True):
        if here:
            table.add_row(*map(Text, row))
    return table


def _width(columns: Columns) -> int:
    """Return the columns of the terminal that the table fills when nothing is cut."""
    return Console(width=10_000).measure(_table(columns)).maximum
