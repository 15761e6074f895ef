"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.cli.prose import Description, describe, write

if TYPE_CHECKING:
    from suffice import AttentionSpec

D_MODEL, HEADS, LENGTH = 256, 4, 256


def list_mechanisms() -> None:
    """List the mechanisms: axes, cost beside standard, source."""
    console = Console(highlight=False)
    lines = [_line(name) for name in _names()]
    table = next((t for t in map(_table, _layouts(lines)) if _width(t) <= console.width), None)
    table = table or _table(_layouts(lines)[-1])
    Console(width=max(console.width, _width(table)), highlight=False).print(table)
    write(
        console,
        f"Per layer at d_model {D_MODEL}, {HEADS} heads, {LENGTH} tokens; x: times what standard "
        "needs; state: numbers kept per token when streaming.",
    )


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key."""
    parts = [type(spec.projections).__name__]
    if type(spec.pattern).__name__ != "Full":
        parts.append(type(spec.pattern).__name__)
    if spec.kv_heads != spec.num_heads:
        parts.append(f"{spec.kv_heads} KV head{'s' if spec.kv_heads > 1 else ''}")
    if spec.mixing.mixes:
        parts.append(type(spec.mixing).__name__)
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One mechanism, every detail that some width has room for."""

    name: str
    axes: str
    parameters: tuple[str, str]
    flops: tuple[str, str]
    state: str
    about: Description


def _names() -> tuple[str, ...]:
    from suffice.presets import PRESETS

    return tuple(PRESETS)


def _line(name: str) -> _Line:
    from suffice.presets import PRESETS, needs_length, preset

    base = preset("standard", D_MODEL, HEADS).cost(LENGTH)
    options = {"length": LENGTH} if needs_length(name) else {}
    spec = preset(name, D_MODEL, HEADS, **options)
    cost = spec.cost(LENGTH)
    return _Line(
        name=name,
        axes=axes(spec),
        parameters=(f"{cost.parameters:,}", f"{cost.parameters / base.parameters:.2f}x"),
        flops=(f"{cost.flops / 1e6:.1f}M", f"{cost.flops / base.flops:.2f}x"),
        state=str(cost.state_numbers),
        about=describe(PRESETS[name]),
    )


def _layouts(lines: list[_Line]) -> list[dict[str, list[str]]]:
    """Return the columns of ever narrower tables: detail goes, words stay whole."""
    ends = {"mechanism": [line.name for line in lines], "axes": [line.axes for line in lines]}
    counts = {
        "parameters": [f"{line.parameters[0]} ({line.parameters[1]})" for line in lines],
        "FLOPs": [f"{line.flops[0]} ({line.flops[1]})" for line in lines],
    }
    ratios = {
        "params": [line.parameters[1] for line in lines],
        "FLOPs": [line.flops[1] for line in lines],
    }
    state = {"state": [line.state for line in lines]}
    brief = {**ends, **ratios, **state}
    return [
        {**ends, **counts, **state, "source": [line.about.source for line in lines]},
        {**ends, **counts, **state, "source": [line.about.citation for line in lines]},
        {**ends, **counts, **state, "source": [line.about.identifier for line in lines]},
        {**brief, "source": [line.about.identifier for line in lines]},
        brief,
        {"mechanism": ends["mechanism"], **ratios},
    ]


def _table(columns: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        numbers = name in ("parameters", "params", "FLOPs", "state")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _width(table: Table) -> int:
    """Return the columns of the terminal that the table fills when nothing is cut."""
    return Console(width=10_000).measure(table).maximum
