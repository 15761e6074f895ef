"""`suffice plan`: what a recipe's training needs on some GPUs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from suffice.cli import completed

GPU = "h100"


def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Of `suffice train` or `suffice compare`.", autocompletion=completed.every_recipe
        ),
    ],
    gpus: Annotated[int, typer.Option(help="How many.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="h100, h200, a100, a100_40gb, l40s, l4 or rtx4090.")
    ] = GPU,
    memory: Annotated[
        str | None, typer.Option(help="Of each GPU, such as 80GB; the GPU's by default.")
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(help="TFLOP/s of products, your own figure; the maker's of dense matrices."),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="GB/s of the memory, your own figure; the maker's.")
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Of the attention; the recipe's by default.", autocompletion=completed.mechanisms
        ),
    ] = None,
    heads: Annotated[int | None, typer.Option(help="The recipe's by default.")] = None,
    scale: Annotated[str, typer.Option(help="paper or small.")] = "paper",
    shard: Annotated[
        bool | None,
        typer.Option("--shard/--replicate", help="Cut the weights between the GPUs, or not."),
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--checkpointing/--keep", help="Compute blocks anew in the backward pass, or not."
        ),
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Micro-batches of a step; the fewest that fit by default.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Rows to learn from, for recipes that count epochs.")
    ] = None,
    network: Annotated[
        float | None, typer.Option(help="GB/s to other nodes for each GPU; the server's own.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Of a GPU for an hour.")] = None,
    reached: Annotated[
        float, typer.Option(help="Percent of the roofline to count on; 30 to 60 are usual.")
    ] = 100.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON only.")] = False,
) -> None:
    """Tell what a training needs before it runs: memory, time, GPUs, price.

    The training's own model, loss, optimiser and sharding are executed on tensors without content,
    among processes that are not there. Nothing is downloaded and no GPU is needed.
    """
    from suffice.cli.planned import as_data, show
    from suffice.planning import Asked, device, work
    from suffice.planning import plan as make
    from suffice.planning.devices import with_figures
    from suffice.units import read_bytes

    asked = Asked(
        gpus=gpus,
        memory=None if memory is None else read_bytes(memory),
        shard=shard,
        checkpointing=checkpointing,
        accumulate=accumulate,
        examples=examples,
        network=None if network is None else network * 1e9,
        price=price,
        reached=reached / 100,
    )
    chosen = work(recipe, mechanism=mechanism, num_heads=heads, scale=scale)
    one = with_figures(
        device(gpu),
        flops=None if flops is None else flops * 1e12,
        bandwidth=None if bandwidth is None else bandwidth * 1e9,
    )
    found = make(chosen, one, asked)
    if as_json:
        sys.stdout.write(json.dumps(as_data(found), indent=1, allow_nan=False) + "\n")
        return
    show(Console(highlight=False), found)
