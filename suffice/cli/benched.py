"""What `suffice bench` prints."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from suffice.cli.prose import write

if TYPE_CHECKING:
    from suffice.measure.edge.bench import Bench
    from suffice.measure.edge.run import Run

MEBIBYTE, GIGA = 1 << 20, 1e9


def print_bench(console: Console, told: Bench, name: str, bits: int | None, memory: str) -> None:
    """Print the figures of one model, then where the time of a token goes."""
    kind = "as stored" if bits is None else f"{bits} bits"
    console.print(f"{name}: {told.parameters:,} parameters, {kind}, memory {memory}", style="bold")
    for label, value in _facts(told).items():
        write(console, value, first=f"  {label:<12}", rest=" " * 14)
    if told.parts:
        console.print(_parts(told))


def _facts(told: Bench) -> dict[str, str]:
    milliseconds = (1e3 * s for s in (told.latency_p50, told.latency_p90, told.latency_p99))
    p50, p90, p99 = (f"{value:.2f} ms" for value in milliseconds)
    peak = "unknown here" if told.peak_bytes is None else _size(told.peak_bytes)
    bound = f"{told.share:.0%} of the {told.bound:.1f} tokens/s at which this machine can read "
    return {
        "prefill": f"{told.prefill:,.1f} tokens/s, a prompt of {told.prompt}",
        "decode": f"{told.decode:,.1f} tokens/s, {told.tokens} new tokens, {told.threads} threads, "
        f"median of {told.rounds}",
        "a token": f"p50 {p50}, p90 {p90}, p99 {p99}",
        "bound": f"{bound}{_size(told.read_bytes)} a token, at {told.bandwidth / GIGA:.1f} GB/s",
        "a step": told.steps,
        "weights": _size(told.weight_bytes),
        "state": f"{_size(told.state_bytes)} behind the last token",
        "peak memory": f"{peak} more than before the model was made",
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / MEBIBYTE:,.2f} MiB"


def _parts(told: Bench) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("part of a token")
    for column in ("MiB read", "MFLOP", "us", "share", "of the bound"):
        table.add_column(column, justify="right")
    whole = sum(part.seconds for part in told.parts)
    for part in told.parts:
        least = part.nbytes / told.bandwidth
        table.add_row(
            part.name,
            f"{part.nbytes / MEBIBYTE:.2f}" if part.nbytes else "",
            f"{part.flops / 1e6:.1f}" if part.flops else "",
            f"{1e6 * part.seconds:.0f}",
            f"{part.seconds / whole:.0%}",
            f"{least / part.seconds:.0%}" if part.nbytes and part.seconds > 0 else "",
        )
    if any(part.seconds < 0 for part in told.parts):
        table.caption = "Below 0: a difference of two measurements, smaller than their noise."
        table.caption_justify = "left"
    return table


def print_peers(console: Console, runs: dict[str, list[Run]]) -> None:
    """Print rates side by side; the first side is ours."""
    from suffice.measure.edge.session import gain

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("in the same rounds")
    for column in ("prefill", "ours is", "decode", "ours is"):
        table.add_column(column, justify="right")
    ours, *_ = runs.values()
    for name, own in runs.items():
        cells = []
        for rate in ("prefill", "decode"):
            cells.append(f"{statistics.median(getattr(run, rate) for run in own):,.1f}/s")
            cells.append("" if own is ours else f"{gain(ours, own, rate):.2f}x")
        table.add_row(name, *cells)
    console.print(table)
