"""`suffice show`: one mechanism, its spec, its cost and which op runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from suffice.errors import ConfigError


def show(
    mechanism: Annotated[str, typer.Argument(help="Name, see `suffice list`.")],
    d_model: Annotated[int, typer.Option(help="Features.")] = 256,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens.")] = 64,
    batch: Annotated[int, typer.Option(help="Samples, for the choice of products.")] = 1,
    causal: Annotated[bool, typer.Option("--causal", help="No look-ahead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spec as JSON only.")] = False,
) -> None:
    """Show one mechanism: what it is, its spec, its counts and its op plan."""
    from suffice.cli.list import axes
    from suffice.cli.prose import describe, write
    from suffice.layers import Attention
    from suffice.presets import PRESETS, needs_length, preset

    if length < 1 or batch < 1:
        raise ConfigError(f"--length {length} --batch {batch}: give at least 1 of each.")
    options = {"length": length} if mechanism in PRESETS and needs_length(mechanism) else {}
    spec = preset(mechanism, d_model, heads, causal=causal, **options)
    if as_json:
        typer.echo(json.dumps(spec.to_json(), indent=1))
        return
    console = Console(highlight=False)
    about = describe(PRESETS[mechanism])
    cost, base = spec.cost(length), preset("standard", d_model, heads, causal=causal).cost(length)
    console.print(f"{mechanism}: {axes(spec)}\n", style="bold", markup=False, soft_wrap=True)
    for paragraph in about.paragraphs:
        write(console, paragraph)
        console.print()
    write(console, about.cost, first="cost    ", rest=" " * 8)
    write(console, about.source, first="source  ", rest=" " * 8)
    console.print(f"\nspec (--json for {mechanism} as data)", markup=False, soft_wrap=True)
    for name, value in _fields(spec).items():
        write(console, value, first=f"  {name:<18}", rest=" " * 20)
    console.print(f"\none layer, one sample of {length} tokens")
    counts = {
        "parameters": f"{cost.parameters:,} ({cost.parameters / base.parameters:.2f}x standard)",
        "FLOPs": f"{cost.flops:,} ({cost.flops / base.flops:.2f}x standard)",
        "of visible pairs": f"{cost.visible_flops:,}",
        "streaming state": f"{cost.state_numbers:,} numbers per token",
    }
    for name, told in counts.items():
        write(console, told, first=f"  {name:<18}", rest=" " * 20)
    console.print(f"\nop plan for {batch} of {length} tokens")
    for line in Attention(spec, device="meta").eval().explain(length, batch=batch).splitlines():
        write(console, line, first="  ", rest="    ")


def _fields(spec) -> dict[str, str]:
    """Return every field of a spec as it was decided, defaults filled in."""
    values = {
        "pattern": spec.pattern,
        "projections": spec.projections,
        "mixing": spec.mixing,
        "kernel": spec.kernel,
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
