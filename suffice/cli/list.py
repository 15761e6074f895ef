"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.cli.terminal import Description, describe, write
from suffice.presets import PRESETS, preset, takes_length
from suffice.view import brief

if TYPE_CHECKING:
    from suffice import AttentionSpec
    from suffice.cost import Cost


EVERY, SPARSE = "Every pair", "Some pairs: sparse patterns"
MIXED, FEATURES = "Mixed along the sequence first", "No pairs: kernels of features"
SEGMENTS = "Segments, and a memory of those before"
GROUPS = (EVERY, MIXED, SPARSE, FEATURES, SEGMENTS)


def sized(
    name: str, d_model: int, num_heads: int, *, length: int, **options: object
) -> AttentionSpec:
    """Return the spec of a mechanism, made for this length where it is made for one.

    Raises:
        ConfigError: for an unknown name, or sizes it cannot have.
    """
    if name in PRESETS and takes_length(name):
        options["length"] = length
    return preset(name, d_model, num_heads, **options)


def state(cost: Cost, numbers: str = "", fixed: str = " fixed") -> str:
    """Return what a streaming layer keeps: numbers for each token, or for any number of them.

    "none" if it cannot stream.

    Args:
        cost: of the layer.
        numbers: what follows a count for each token.
        fixed: what follows a count that does not grow.

    Example:
        >>> from suffice import preset
        >>> state(preset("standard", 64, 4).cost(9), numbers=" numbers per token")
        '128 numbers per token'
    """
    told = [f"{cost.state_numbers:,}{numbers}"] if cost.state_numbers else []
    if cost.state_fixed:
        told.append(f"{cost.state_fixed:,}{fixed}")
    return " + ".join(told) or "none"


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key.

    Example:
        >>> from suffice import preset
        >>> axes(preset("efficient", 64, 4, causal=True))
        'Efficient, Causal'
    """
    parts = []
    if type(spec.encoder).__name__ != "Standard":
        parts.append(type(spec.encoder).__name__)
    if type(spec.pattern).__name__ != "Full":
        parts.append(brief(spec.pattern))
    if spec.kv_heads != spec.num_heads:
        parts.append(f"{spec.kv_heads} KV head{'s' if spec.kv_heads > 1 else ''}")
    if spec.mixing.mixes:
        parts.append(type(spec.mixing).__name__)
    if type(spec.kernel).__name__ != "Softmax":
        parts.append(type(spec.kernel).__name__)
    if spec.norm.norms:
        parts.append(type(spec.norm).__name__)
    if spec.past.reads:
        parts.append(type(spec.past).__name__)
    if spec.position.absolute:
        parts.append(type(spec.position).__name__)
    return ", ".join(parts) or "Standard"


def group(spec: AttentionSpec) -> str:
    """Return which of the groups a mechanism belongs to."""
    if spec.past.reads:
        return SEGMENTS
    if not spec.kernel.weighs_pairs:
        return FEATURES
    if spec.mixing.mixes:
        return MIXED
    if type(spec.pattern).__name__ in ("Full", "Causal"):
        return EVERY
    return SPARSE


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
