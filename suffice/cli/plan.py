"""`suffice plan`: what a recipe's training needs on some GPUs."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from suffice.cli import options
from suffice.cli.terminal import write
from suffice.planning import Plan
from suffice.planning.plan import Choice, Parts

GPU = "h100"


def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Of `suffice train` or `suffice compare`.", autocompletion=options.every_recipe
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
            help="Of the attention; the recipe's by default.", autocompletion=options.mechanisms
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
    from suffice.grammar import parse_bytes
    from suffice.planning import Asked, device, work
    from suffice.planning import plan as make
    from suffice.planning.devices import with_figures

    asked = Asked(
        gpus=gpus,
        memory=None if memory is None else parse_bytes(memory),
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


LOOK: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "show_edge": False,
    "pad_edge": False,
    "padding": (0, 1, 0, 0),
}
NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimiser": "optimiser",
    "activations": "activations, kept for the backward pass",
    "other": "gathered weights, buckets, results under way",
    "peak": "fullest moment",
}


def show(console: Console, plan: Plan) -> None:
    """Print a plan."""
    write(console, f"{plan.work.title}; attention: {plan.work.mechanism}")
    write(console, f"{plan.gpus} x {plan.device.title}, {_gb(plan.memory)} each")
    write(console, f"numbers of the device: {plan.device.source}")
    console.print()
    console.print(_parts(plan.parts))
    console.print()
    console.print(_choices(plan))
    console.print()
    for sentence in sentences(plan):
        write(console, sentence)


def sentences(plan: Plan) -> list[str]:
    """Return what fits, what limits, how long it takes and what it costs."""
    return [_fits(plan), *_state(plan), _speed(plan), _limit(plan), _length(plan), BASIS]


BASIS = (
    "Memory is counted on tensors without content and is that of torch's tensors alone; 10% of a "
    "GPU's are left to the rest. Times are a roofline: no program is faster, most are slower "
    "(--reached)."
)


def as_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data; bytes, seconds, and ranges from the least to the most."""
    return {
        "recipe": plan.work.name,
        "mechanism": plan.work.mechanism,
        "parameters": plan.numbers,
        "gpu": dataclasses.asdict(plan.device) | {"flops": dict(plan.device.flops)},
        "gpus": plan.gpus,
        "memory": plan.memory,
        "usable": plan.usable,
        "fits": plan.best.fits,
        "fewest_gpus": plan.fewest,
        "bytes": dataclasses.asdict(plan.parts),
        "layouts": [_layout(plan, one) for one in plan.choices],
        "rows_per_step": plan.work.rows,
        "tokens_per_step": plan.work.rows * plan.work.tokens,
        "flops_per_step": plan.flops,
        "steps": plan.steps,
        "reached": plan.reached,
        "days": plan.days(),
        "price_per_hour": plan.price,
        "cost": plan.cost(),
        "sentences": sentences(plan),
    }


def _layout(plan: Plan, choice: Choice) -> dict[str, Any]:
    return {
        **dataclasses.asdict(choice.way),
        "bytes": choice.memory,
        "exact": choice is plan.best,
        "fits": choice.fits,
        "seconds_per_step": plan.seconds(choice),
        "tokens_per_second": plan.tokens_per_second(choice),
    }


def _parts(parts: Parts) -> Table:
    table = Table("bytes of a GPU", "", **LOOK)
    for name, told in NAMES.items():
        table.add_row(told, _gb(getattr(parts, name)))
    return table


def _choices(plan: Plan) -> Table:
    names = ("layout", "blocks", "micro-batches", "rows", "memory", "fits", "tokens/s at most")
    table = Table(*names, **LOOK)
    for choice in plan.choices:
        way, about = choice.way, "" if choice is plan.best else "about "
        table.add_row(
            _held(plan, choice),
            "anew" if way.checkpointing else "kept",
            f"{way.accumulate}",
            f"{way.rows}",
            f"{about}{_gb(choice.memory)}",
            "yes" if choice.fits else "no",
            _many(plan.tokens_per_second(choice)),
        )
    return table


def _held(plan: Plan, choice: Choice) -> str:
    if plan.gpus == 1:
        return "one GPU"
    return "sharded" if choice.way.shard else "replicated"


def _fits(plan: Plan) -> str:
    way, need = plan.best.way, f"{_gb(plan.best.memory)} of {_gb(plan.usable)} usable"
    if plan.best.fits:
        settings = [f"micro-batches of {way.rows} rows on a GPU"]
        if plan.work.free:
            settings.append(f"--set accumulate={way.accumulate}")
            settings.append(f"--set checkpointing={str(way.checkpointing).lower()}")
            settings += ["--shard"] if way.shard else []
        fewest = f"; it fits from {_gpus(plan.fewest)} on" if plan.gpus > 1 else ""
        return f"It fits: {need}, with {', '.join(settings)}{fewest}."
    if plan.fewest is None:
        return (
            f"It does not fit: {need} at the least, and more GPUs would not help; take larger ones."
        )
    return f"It does not fit: {need} at the least; it would on {_gpus(plan.fewest)}."


def _gpus(count: int | None) -> str:
    """Return so many GPUs as words.

    Example:
        >>> _gpus(1), _gpus(8)
        ('1 GPU', '8 GPUs')
    """
    return f"{count} GPU{'' if count == 1 else 's'}"


def _state(plan: Plan) -> list[str]:
    if not plan.parts.state:
        return []
    return [
        f"Writing, attention keeps {_gb(plan.parts.state)} for a row of {plan.work.tokens:,} "
        "tokens."
    ]


def _speed(plan: Plan) -> str:
    exchange = ", with all exchange meanwhile or none" if plan.best.time.exchange else ""
    return (
        f"A step of {plan.work.rows:,} rows is {plan.flops:.3g} FLOPs and takes "
        f"{_seconds(plan.seconds())}{exchange}: {_many(plan.tokens_per_second())} tokens/s."
    )


def _seconds(ends: tuple[float, float]) -> str:
    """Return both ends in a unit that fits, or the one time that they are.

    Example:
        >>> _seconds((0.000864, 0.000864)), _seconds((0.2281, 0.407))
        ('864 us', '228 to 407 ms')
    """
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
    scale, unit = next((one for one in units if ends[1] * one[0] >= 1), units[-1])
    told = dict.fromkeys(f"{end * scale:.3g}" for end in ends)
    return f"{' to '.join(told)} {unit}"


def _limit(plan: Plan) -> str:
    time = plan.best.time
    shares = {
        f"products in {plan.work.dtype}": time.products,
        "reading and writing memory": time.traffic,
        f"exchange between {plan.gpus} GPUs": time.exchange,
    }
    total = sum(shares.values())
    told = [f"{name} {share / total:.0%}" for name, share in shares.items() if share]
    most = max(shares, key=lambda name: shares[name])
    return f"What limits is {most}: of a step one after the other, {', '.join(told)}."


def _length(plan: Plan) -> str:
    days = plan.days()
    if days is None:
        return "How long the training takes depends on the data: --examples ROWS tells."
    told = f"{plan.steps:,} steps take {_range(days, 3)} days"
    cost = plan.cost()
    if cost is None:
        return f"{told}; --price tells the cost."
    return f"{told} and cost {_range(cost)} at {plan.price:g} for a GPU's hour."


def _gb(size: int) -> str:
    """Return bytes as words.

    Example:
        >>> _gb(1_500_000_000), _gb(20_000)
        ('1.50 GB', '0.02 MB')
    """
    return f"{size / 1e9:,.2f} GB" if size >= 10**8 else f"{size / 1e6:,.2f} MB"


def _many(ends: tuple[float, float]) -> str:
    """Return both ends in three digits, or the one number that they are.

    Example:
        >>> _many((950.0, 1500.0)), _many((2_345_678.0, 2_345_900.0))
        ('950 to 1.5k', '2.35M')
    """
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))
    told = []
    for end in ends:
        size, unit = next((size, unit) for size, unit in units if end >= size)
        told.append(f"{end / (size or 1):.3g}{unit}")
    return " to ".join(dict.fromkeys(told))


def _range(ends: tuple[float, float], digits: int = 0) -> str:
    """Return both ends, or the one number that they are.

    Example:
        >>> _range((1.0, 2500.0)), _range((2.0, 2.0))
        ('1 to 2,500', '2')
    """
    low, high = (f"{end:,.0f}" if end >= 100 or not digits else f"{end:.{digits}g}" for end in ends)
    return low if low == high else f"{low} to {high}"
