"""`suffice plan`: estimate the memory, time and price of a recipe's training on GPUs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from suffice.cli import options
from suffice.cli.terminal import RULED, print_json, print_paragraph
from suffice.utils.grammar import COUNTS, format_quantity, parse_bytes

if TYPE_CHECKING:
    from suffice.measure.planning import TrainingEstimate
    from suffice.measure.planning.plan import LayoutEstimate

GPU = "h100"
LOOK: dict[str, Any] = {**RULED, "padding": (0, 1, 0, 0)}
PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimiser": "optimiser",
    "activations": "activations, saved for the backward pass",
    "other": "gathered weights, buckets, temporary results",
    "peak": "peak",
}
BASIS = (
    "Memory is counted on fake tensors and is that of torch's tensors alone; 10% of a GPU's is "
    "left for the rest. Times are a roofline: no program is faster, most are slower (--reached)."
)


def plan(
    recipe: Annotated[
        str,
        Argument(
            help="Recipe of `suffice train` or `suffice compare`.",
            **options.known("recipe", "suffice.recipes", "ALL_RECIPES"),
        ),
    ],
    gpus: Annotated[int, Option(help="Number of GPUs.")] = 1,
    gpu: Annotated[str, Option(help=f"{', '.join(options.GPUS)}.")] = GPU,
    memory: Annotated[
        str | None, Option(help="Memory of each GPU, such as 80GB; the GPU's by default.")
    ] = None,
    flops: Annotated[
        float | None,
        Option(
            help="Your own figure, TFLOP/s of products; the maker's for dense matrices by default."
        ),
    ] = None,
    bandwidth: Annotated[
        float | None, Option(help="Your own figure, GB/s of the memory; the maker's by default.")
    ] = None,
    mechanism: Annotated[
        str | None,
        Option(help="Attention; the recipe's by default.", **options.A_MECHANISM),
    ] = None,
    heads: Annotated[int | None, Option(help="Heads; the recipe's by default.")] = None,
    scale: Annotated[str, Option(help="paper or small.")] = "paper",
    shard: Annotated[
        bool | None,
        Option(
            "--shard/--replicate", help="Split the weights between the GPUs, or copy them to each."
        ),
    ] = None,
    checkpointing: Annotated[
        bool | None,
        Option(
            "--checkpointing/--keep",
            help="Recompute blocks in the backward pass, or keep their activations.",
        ),
    ] = None,
    accumulate: Annotated[
        int | None, Option(help="Micro-batches of a step; the fewest that fit by default.")
    ] = None,
    examples: Annotated[
        int | None, Option(help="Training rows, for recipes that count epochs.")
    ] = None,
    network: Annotated[
        float | None, Option(help="GB/s to other nodes for each GPU; the server's by default.")
    ] = None,
    price: Annotated[float | None, Option(help="Price of a GPU for an hour.")] = None,
    reached: Annotated[
        float, Option(help="Percent of the roofline to count on; 30 to 60 are usual.")
    ] = 100.0,
    as_json: Annotated[bool, Option("--json", help="Print the plan as JSON only.")] = False,
) -> None:
    """Estimate what a training needs before it runs: memory, time, GPUs, price.

    The training's own model, loss, optimiser and sharding run on fake tensors in a fake process
    group. Nothing is downloaded and no GPU is needed.
    """
    from suffice.measure.planning import PlanOptions, device, workload
    from suffice.measure.planning import plan as make_plan
    from suffice.measure.planning.devices import with_figures

    hardware = PlanOptions(
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
    training = workload(recipe, mechanism=mechanism, num_heads=heads, scale=scale)
    figures = with_figures(
        device(gpu),
        flops=None if flops is None else flops * 1e12,
        bandwidth=None if bandwidth is None else bandwidth * 1e9,
    )
    result = make_plan(training, figures, hardware)
    if as_json:
        print_json(as_data(result))
    else:
        print_plan(Console(highlight=False), result)


def print_plan(console: Console, plan: TrainingEstimate) -> None:
    """Print a plan."""
    print_paragraph(console, f"{plan.workload.title}; attention: {plan.workload.mechanism}")
    print_paragraph(console, f"{plan.gpus} x {plan.device.title}, {_bytes(plan.memory)} each")
    print_paragraph(console, f"figures of the device: {plan.device.source}")
    console.print()
    parts = Table("bytes of a GPU", "", **LOOK)
    for name, title in PARTS.items():
        parts.add_row(title, _bytes(getattr(plan.parts, name)))
    console.print(parts)
    console.print()
    console.print(_layouts(plan))
    console.print()
    for sentence in sentences(plan):
        print_paragraph(console, sentence)


def sentences(plan: TrainingEstimate) -> list[str]:
    """Return what fits, what limits, how long it takes and what it costs."""
    state = []
    if plan.parts.state:
        state = [
            f"When generating, the KV cache of a row of {plan.workload.tokens:,} tokens takes "
            f"{_bytes(plan.parts.state)}."
        ]
    return [_fit(plan), *state, _speed(plan), _limit(plan), _duration(plan), BASIS]


def as_data(plan: TrainingEstimate) -> dict[str, Any]:
    """Return a plan as plain data; bytes, seconds, and ranges from the least to the most."""
    return {
        "recipe": plan.workload.name,
        "mechanism": plan.workload.mechanism,
        "parameters": plan.parameter_count,
        "gpu": dataclasses.asdict(plan.device) | {"flops": dict(plan.device.flops)},
        "gpus": plan.gpus,
        "memory": plan.memory,
        "usable": plan.usable,
        "fits": plan.best.fits,
        "fewest_gpus": plan.fewest_gpus,
        "bytes": dataclasses.asdict(plan.parts),
        "layouts": [
            {
                **dataclasses.asdict(estimate.layout),
                "bytes": estimate.memory,
                "exact": estimate is plan.best,
                "fits": estimate.fits,
                "seconds_per_step": plan.seconds(estimate),
                "tokens_per_second": plan.tokens_per_second(estimate),
            }
            for estimate in plan.layouts
        ],
        "rows_per_step": plan.workload.rows,
        "tokens_per_step": plan.workload.rows * plan.workload.tokens,
        "flops_per_step": plan.flops,
        "steps": plan.steps,
        "reached": plan.reached,
        "days": plan.days(),
        "price_per_hour": plan.price,
        "cost": plan.cost(),
        "sentences": sentences(plan),
    }


def _layouts(plan: TrainingEstimate) -> Table:
    columns = ("layout", "blocks", "micro-batches", "rows", "memory", "fits", "tokens/s at most")
    table = Table(*columns, **LOOK)
    for estimate in plan.layouts:
        layout = estimate.layout
        about = "" if estimate is plan.best else "about "
        table.add_row(
            _weights(plan, estimate),
            "recomputed" if layout.checkpointing else "kept",
            f"{layout.accumulate}",
            f"{layout.rows}",
            f"{about}{_bytes(estimate.memory)}",
            "yes" if estimate.fits else "no",
            _counts(plan.tokens_per_second(estimate)),
        )
    return table


def _weights(plan: TrainingEstimate, estimate: LayoutEstimate) -> str:
    if plan.gpus == 1:
        return "one GPU"
    return "sharded" if estimate.layout.shard else "replicated"


def _fit(plan: TrainingEstimate) -> str:
    layout = plan.best.layout
    need = f"{_bytes(plan.best.memory)} of {_bytes(plan.usable)} usable"
    if plan.best.fits:
        settings = [f"micro-batches of {layout.rows} rows on a GPU"]
        if plan.workload.adjustable:
            settings.append(f"--set accumulate={layout.accumulate}")
            settings.append(f"--set checkpointing={str(layout.checkpointing).lower()}")
            settings += ["--shard"] if layout.shard else []
        fewest = f"; it fits from {_gpus(plan.fewest_gpus)} on" if plan.gpus > 1 else ""
        return f"It fits: {need}, with {', '.join(settings)}{fewest}."
    if plan.fewest_gpus is None:
        return f"It does not fit: at least {need}, and more GPUs would not help; take larger ones."
    return f"It does not fit: at least {need}; it would on {_gpus(plan.fewest_gpus)}."


def _gpus(count: int | None) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _speed(plan: TrainingEstimate) -> str:
    overlap = ", depending on how much of the exchange overlaps" if plan.best.time.exchange else ""
    return (
        f"A step of {plan.workload.rows:,} rows is {plan.flops:.3g} FLOPs and takes "
        f"{_seconds(plan.seconds())}{overlap}: {_counts(plan.tokens_per_second())} tokens/s."
    )


def _limit(plan: TrainingEstimate) -> str:
    time = plan.best.time
    seconds = {
        f"products in {plan.workload.dtype}": time.products,
        "reading and writing memory": time.traffic,
        f"exchange between {plan.gpus} GPUs": time.exchange,
    }
    total = sum(seconds.values())
    shares = [f"{name} {value / total:.0%}" for name, value in seconds.items() if value]
    largest = max(seconds, key=lambda name: seconds[name])
    return f"The limit is {largest}: a step without overlap is {', '.join(shares)}."


def _duration(plan: TrainingEstimate) -> str:
    days = plan.days()
    if days is None:
        return "How long the training takes depends on the data: give --examples ROWS."
    duration = f"{plan.steps:,} steps take {_range(days, 3)} days"
    cost = plan.cost()
    if cost is None:
        return f"{duration}; give --price for the cost."
    return f"{duration} and cost {_range(cost)} at {plan.price:g} for a GPU's hour."


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 10**8 else f"{size / 1e6:,.2f} MB"  # noqa: PLR2004


def _seconds(ends: tuple[float, float]) -> str:
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
    scale, unit = next((each for each in units if ends[1] * each[0] >= 1), units[-1])
    return f"{' to '.join(dict.fromkeys(f'{end * scale:.3g}' for end in ends))} {unit}"


def _counts(ends: tuple[float, float]) -> str:
    return " to ".join(dict.fromkeys(format_quantity(end, COUNTS) for end in ends))


def _range(ends: tuple[float, float], digits: int = 0) -> str:
    low, high = (
        f"{end:,.0f}" if end >= 100 or not digits else f"{end:.{digits}g}"  # noqa: PLR2004
        for end in ends
    )
    return low if low == high else f"{low} to {high}"
