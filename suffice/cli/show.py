"""`suffice show`: one mechanism, its spec, its cost and which op runs."""

from __future__ import annotations

import inspect
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
    json_only: Annotated[bool, typer.Option("--json", help="Print the spec as JSON only.")] = False,
) -> None:
    """Show one mechanism: what it is, its spec, its counts and its op plan."""
    from suffice.cli.list import axes
    from suffice.layers import Attention
    from suffice.presets import PRESETS, needs_length, preset

    if length < 1 or batch < 1:
        raise ConfigError(f"--length {length} --batch {batch}: give at least 1 of each.")
    options = {"length": length} if mechanism in PRESETS and needs_length(mechanism) else {}
    spec = preset(mechanism, d_model, heads, causal=causal, **options)
    if json_only:
        typer.echo(json.dumps(spec.to_json(), indent=1))
        return
    console = Console(highlight=False)
    cost = spec.cost(length)
    base = preset("standard", d_model, heads, causal=causal).cost(length)
    console.print(f"{mechanism}: {axes(spec)}", style="bold", markup=False)
    console.print(inspect.cleandoc(PRESETS[mechanism].__doc__ or ""), markup=False)
    console.print(f"\nspec: {json.dumps(spec.to_json())}", markup=False)
    rows = {
        "parameters": f"{cost.parameters:,} ({cost.parameters / base.parameters:.2f}x standard)",
        "FLOPs": f"{cost.flops:,} ({cost.flops / base.flops:.2f}x standard)",
        "of visible pairs": f"{cost.visible_flops:,}",
        "streaming state": f"{cost.state_numbers:,} numbers per token",
    }
    console.print(f"\none layer, one sample of {length} tokens:")
    for name, told in rows.items():
        console.print(f"  {name:<17} {told}", markup=False)
    layer = Attention(spec, device="meta").eval()
    console.print(f"\nop plan:\n{layer.explain(length, batch=batch)}", markup=False)
