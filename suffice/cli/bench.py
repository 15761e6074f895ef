"""`suffice bench`: how fast a model writes on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from suffice.cli import options
from suffice.cli.options import CHECKPOINT, LEGAL, memory_of
from suffice.cli.terminal import write
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.measure.edge.bench import Bench
    from suffice.models import LM


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


def bench(
    checkpoint: Annotated[Path | None, typer.Argument(help=CHECKPOINT)] = None,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of a shape instead: 15m or 110m.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="Of a weight: 32, 16, 8 or 4; as it is unless given.")
    ] = None,
    mechanism: Annotated[
        str, typer.Option(help="Attention of a shape.", autocompletion=options.mechanisms)
    ] = "standard",
    memory: Annotated[str, typer.Option(help=f"What is kept of the text: {LEGAL}.")] = "dynamic",
    quantise_memory: Annotated[
        int | None, typer.Option(help="Keep it in 8 or 4 bits a number.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="New tokens of a text.")] = 256,
    prompt: Annotated[int, typer.Option(help="Tokens read before them.")] = 512,
    rounds: Annotated[int, typer.Option(help="Texts; figures are medians over them.")] = 3,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a product; torch's number unless given.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
) -> None:
    """Measure a model on this CPU: speed, latency, memory, and the share of what is possible."""
    from suffice.measure.edge.bench import bench as measure
    from suffice.measure.edge.bench import resident

    _check(tokens, prompt, rounds, threads)
    kept = memory_of(memory, quantise_memory)
    before, found = torch.get_num_threads(), resident()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        lm = _model(checkpoint, shape, mechanism, bits)
        console = Console(highlight=False)
        told = measure(lm, kept, prompt=prompt, new=tokens, rounds=rounds, before=found)
        if quantise_memory is not None:
            memory = f"{memory} in {quantise_memory} bits"
        print_bench(console, told, shape or str(checkpoint), bits, memory)
    finally:
        torch.set_num_threads(before)
    if json is not None:
        _write(json, told, {"shape": shape, "bits": bits, "memory": memory})


def _check(tokens: int, prompt: int, rounds: int, threads: int | None) -> None:
    given = {"--tokens": (tokens, 2), "--prompt": (prompt, 2), "--rounds": (rounds, 1)}
    given["--threads"] = (1 if threads is None else threads, 1)
    for name, (value, least) in given.items():
        if value < least:
            raise ConfigError(f"{name} {value}: give at least {least}.")


def _model(checkpoint: Path | None, shape: str | None, mechanism: str, bits: int | None) -> LM:
    """Return the model that was asked for; without bits as it is stored."""
    from suffice.measure.edge.shapes import SHAPES, in_bits, shaped
    from suffice.models import folder

    if (checkpoint is None) == (shape is None):
        raise ConfigError(
            f"give a folder that `suffice train` wrote or --shape {' or '.join(SHAPES)}, one of "
            "both."
        )
    if checkpoint is None:
        lm = shaped(shape, mechanism)
    elif mechanism != "standard":
        raise ConfigError(f"--mechanism {mechanism}: {checkpoint} has its own; omit it.")
    else:
        lm, _, _ = folder.load(checkpoint, torch.device("cpu"))
    return lm if bits is None else in_bits(lm, bits)


def _write(path: Path, told: Bench, asked: dict[str, Any]) -> None:
    import json

    from suffice.files import write_atomic
    from suffice.measure.machine import machine_facts, software_versions, source_commit

    facts = {**machine_facts(), **software_versions(), "commit": source_commit()}
    content = {"asked": asked, "found": asdict(told), "machine": facts}
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
