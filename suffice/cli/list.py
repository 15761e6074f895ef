"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.cli.terminal import RULED, Description, describe, print_paragraph
from suffice.cost import Cost
from suffice.presets import PRESETS, preset, takes_length
from suffice.spec import AttentionSpec
from suffice.view import brief

EVERY_PAIR, SOME_PAIRS = "Every pair", "Some pairs: sparse patterns"
MIXED, FEATURES = "Mixed along the sequence first", "No pairs: kernels of features"
SEGMENTS = "Segments, and a memory of those before"
GROUPS = (EVERY_PAIR, MIXED, SOME_PAIRS, FEATURES, SEGMENTS)
DEFAULTS = {
    "encoder": "Standard",
    "pattern": "Full",
    "mixing": "NoMixing",
    "kernel": "Softmax",
    "norm": "NoNorm",
    "past": "NoPast",
    "combine": "Concat",
}
"""The axes of multi-head attention over every key."""
D_MODEL, HEADS, LENGTH = 256, 4, 1024
NUMBERS = ("parameters", "params", "FLOPs", "state")

Columns = dict[str, list[str]]


def list_mechanisms() -> None:
    """List the mechanisms: axes, cost beside standard, source."""
    console = Console(highlight=False)
    rows = sorted(map(_row, PRESETS), key=lambda row: GROUPS.index(row.group))
    layouts = _layouts(rows)
    columns = next((c for c in layouts if _width(c) <= console.width), layouts[-1])
    wide = Console(width=max(console.width, _width(columns)), highlight=False)
    for number, name in enumerate(dict.fromkeys(row.group for row in rows)):
        if number:
            wide.print()
        wide.print(name, style="bold", markup=False)
        wide.print(_table(columns, [row.group == name for row in rows]))
    console.print()
    print_paragraph(
        console,
        f"Per layer at d_model {D_MODEL}, {HEADS} heads, {LENGTH} tokens; x: times standard; "
        "state: numbers stored when streaming, per past token unless fixed (`suffice show` counts "
        "both).",
    )


def sized(
    name: str, d_model: int, num_heads: int, /, *, length: int, **options: object
) -> AttentionSpec:
    """Return the spec of a mechanism, made for this length if it is made for one."""
    if name in PRESETS and takes_length(name):
        options["length"] = length
    return preset(name, d_model, num_heads, **options)


def state(cost: Cost, numbers: str = "", fixed: str = " fixed") -> str:
    """Return how many numbers a streaming layer stores, per token or in all.

    "none" if it cannot stream.

    Example:
        >>> from suffice import preset
        >>> state(preset("standard", 64, 4).cost(9), numbers=" numbers per token")
        '128 numbers per token'
    """
    counts = [f"{cost.state_numbers:,}{numbers}"] if cost.state_numbers else []
    if cost.state_fixed:
        counts.append(f"{cost.state_fixed:,}{fixed}")
    return " + ".join(counts) or "none"


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key.

    Example:
        >>> from suffice import preset
        >>> axes(preset("efficient", 64, 4, causal=True))
        'Efficient, Causal'
    """
    changed = [a for a, default in DEFAULTS.items() if type(getattr(spec, a)).__name__ != default]
    names = [brief(getattr(spec, axis)) for axis in changed]
    if spec.kv_heads != spec.num_heads:
        heads = f"{spec.kv_heads} KV head{'s' if spec.kv_heads > 1 else ''}"
        names.insert(len({"encoder", "pattern"} & set(changed)), heads)
    if spec.position.absolute:
        names.append(brief(spec.position))
    return ", ".join(names) or "Standard"


def group(spec: AttentionSpec) -> str:
    """Return the one of `GROUPS` that a mechanism belongs to."""
    if spec.past.reads:
        return SEGMENTS
    if not spec.kernel.weighs_pairs:
        return FEATURES
    if spec.mixing.mixes:
        return MIXED
    if type(spec.pattern).__name__ in ("Full", "Causal"):
        return EVERY_PAIR
    return SOME_PAIRS


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One mechanism, with every detail that the widest table shows."""

    name: str
    group: str
    axes: str
    parameters: tuple[str, str]
    flops: tuple[str, str]
    state: str
    about: Description


def _row(name: str) -> _Row:
    base = sized("standard", D_MODEL, HEADS, length=LENGTH).cost(LENGTH)
    spec = sized(name, D_MODEL, HEADS, length=LENGTH)
    cost = spec.cost(LENGTH)
    return _Row(
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


def _layouts(rows: list[_Row]) -> list[Columns]:
    """Return the columns of ever narrower tables: details are left out, words stay whole."""
    names = {"mechanism": [row.name for row in rows]}
    ends = {**names, "axes": [row.axes for row in rows]}
    counts = {
        "parameters": [f"{row.parameters[0]} ({row.parameters[1]})" for row in rows],
        "FLOPs": [f"{row.flops[0]} ({row.flops[1]})" for row in rows],
    }
    ratios = {
        "params": [row.parameters[1] for row in rows],
        "FLOPs": [row.flops[1] for row in rows],
    }
    state_column = {"state": [row.state for row in rows]}
    number = {"source": [row.about.identifier for row in rows]}
    return [
        {**ends, **counts, **state_column, "source": [row.about.source for row in rows]},
        {**ends, **counts, **state_column, "source": [row.about.citation for row in rows]},
        {**ends, **counts, **state_column, **number},
        {**ends, **ratios, **state_column, **number},
        {**ends, **ratios, **state_column},
        {**names, **ratios, **state_column, **number},
        {**names, **ratios, **state_column},
        {**names, **ratios},
    ]


def _table(columns: Columns, visible: list[bool] | None = None) -> Table:
    """Return a table of the rows shown, with columns as wide as all rows need."""
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
