"""`suffice list`: the mechanisms with their axes, cost and source."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

SIZES = {"d_model": 256, "num_heads": 4}
LENGTH = 256


def list_mechanisms() -> None:
    """List the mechanisms: axes, cost beside standard, source."""
    from suffice.presets import PRESETS, needs_length, preset

    base = preset("standard", **SIZES).cost(LENGTH)
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"per layer at d_model {SIZES['d_model']}, {SIZES['num_heads']} heads, "
        f"{LENGTH} tokens; state: numbers kept per token when streaming",
        caption_justify="left",
    )
    for column in ("mechanism", "axes", "parameters", "FLOPs", "state", "source"):
        table.add_column(column, overflow="fold")
    for name, build in PRESETS.items():
        options = {"length": LENGTH} if needs_length(name) else {}
        spec = preset(name, **SIZES, **options)
        cost = spec.cost(LENGTH)
        table.add_row(
            name,
            axes(spec),
            f"{cost.parameters:,} ({cost.parameters / base.parameters:.2f}x)",
            f"{cost.flops / 1e6:.1f}M ({cost.flops / base.flops:.2f}x)",
            str(cost.state_numbers),
            source(build.__doc__ or ""),
        )
    Console().print(table)


def axes(spec) -> str:
    """Name the axis values that differ from multi-head attention over every key."""
    parts = [type(spec.projections).__name__, type(spec.pattern).__name__]
    if spec.kv_heads != spec.num_heads:
        parts.append(f"{spec.kv_heads} KV heads")
    if spec.mixing.mixes:
        parts.append(type(spec.mixing).__name__)
    return ", ".join(parts)


def source(docstring: str) -> str:
    """Return the source a docstring names."""
    _, _, rest = docstring.partition("Source:")
    return " ".join(rest.split("\n\n")[0].split())
