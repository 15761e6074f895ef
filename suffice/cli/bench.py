"""`suffice bench`: measure a model's decoding speed and memory on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from suffice.cli import options
from suffice.cli.options import (
    JsonFlag,
    MemoryBits,
    MemoryOption,
    check_at_least,
    parse_memory,
    text_option,
)
from suffice.cli.terminal import RULED, print_json, print_next, print_paragraph
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.choose.bench import Bench
    from suffice.models import LM

MEBIBYTE, GIGA = 1 << 20, 1e9


def bench(
    checkpoint: Annotated[
        Path | None,
        Argument(
            callback=options.existing,
            help="Folder written by `suffice train`, convert, heal or quantise.",
        ),
    ] = None,
    shape: Annotated[
        str | None, Option(help="Random weights of this size instead: 15m or 110m.")
    ] = None,
    bits: Annotated[
        int | None, Option(help="Bits of a weight: 32, 16, 8 or 4; as stored by default.")
    ] = None,
    mechanism: Annotated[
        str, Option(help="Attention of --shape.", **options.A_MECHANISM)
    ] = "standard",
    memory: MemoryOption = "dynamic",
    quantise_memory: MemoryBits = None,
    tokens: Annotated[int, Option(help="New tokens of a text.")] = 256,
    prompt: Annotated[int, Option(help="Tokens of the prompt.")] = 512,
    rounds: Annotated[int, Option(help="Texts to write; figures are medians.")] = 3,
    threads: Annotated[
        int | None, Option(help="Threads of a product; torch's number by default.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a model on this CPU: speed, latency, memory, and the share of the memory bound."""
    import torch

    from suffice.choose.bench import bench as measure
    from suffice.choose.bench import resident
    from suffice.models.packed import schemes_of
    from suffice.utils.machine import machine_facts, software_versions, source_commit
    from suffice.utils.torch_compat import threads as use_threads

    check_at_least(2, tokens=tokens, prompt=prompt)
    check_at_least(1, rounds=rounds, threads=threads)
    cache = parse_memory(memory, quantise_memory)
    if quantise_memory is not None:
        memory = f"{memory} in {quantise_memory} bits"
    earlier_threads, resident_before = torch.get_num_threads(), resident()
    if threads is not None:
        use_threads(threads)
    try:
        lm, facts = _model(checkpoint, shape, mechanism, bits)
        result = measure(
            lm, cache, prompt=prompt, new=tokens, rounds=rounds, before=resident_before
        )
    finally:
        torch.set_num_threads(earlier_threads)
    if as_json:
        content = {
            "asked": {"shape": shape, "bits": bits, "memory": memory},
            "found": asdict(result),
            "machine": {**machine_facts(), **software_versions(), "commit": source_commit()},
        }
        print_json(content)
        return
    console = Console(highlight=False)
    print_bench(console, result, shape or str(checkpoint), bits, memory)
    if checkpoint is not None and bits is None and not schemes_of(lm):
        text = text_option("--calibration", "none", facts)
        print_next(f"suffice quantise {quote(str(checkpoint))}{text}", console=console)


def _model(
    checkpoint: Path | None, shape: str | None, mechanism: str, bits: int | None
) -> tuple[LM, dict[str, Any]]:
    import torch

    from suffice.choose.bench import SHAPES, in_bits, shaped
    from suffice.models import folder

    if (checkpoint is None) == (shape is None):
        both = "" if shape is None else f", not both {checkpoint} and --shape {shape}"
        raise ConfigError(f"give the folder of a model or --shape {' or '.join(SHAPES)}{both}.")
    facts: dict[str, Any] = {}
    if checkpoint is None:
        lm = shaped(shape, mechanism)
    elif mechanism != "standard":
        raise ConfigError(f"--mechanism {mechanism}: {checkpoint} has its own; leave it out.")
    else:
        lm, _, facts = folder.load(checkpoint, torch.device("cpu"))
    return lm if bits is None else in_bits(lm, bits), facts


def print_bench(console: Console, result: Bench, name: str, bits: int | None, memory: str) -> None:
    weights = "as stored" if bits is None else f"{bits} bits"
    title = f"{name}: {result.parameters:,} parameters, {weights}, memory {memory}"
    console.print(title, style="bold")
    for label, value in _facts(result).items():
        print_paragraph(console, value, first=f"  {label:<12}", rest=" " * 14)
    if result.parts:
        console.print(_parts(result))


def _facts(result: Bench) -> dict[str, str]:
    p50, p90, p99 = (
        f"{1e3 * seconds:.2f} ms"
        for seconds in (result.latency_p50, result.latency_p90, result.latency_p99)
    )
    peak = "unknown here" if result.peak_bytes is None else _size(result.peak_bytes)
    return {
        "prefill": f"{result.prefill:,.1f} tokens/s, a prompt of {result.prompt}",
        "decode": f"{result.decode:,.1f} tokens/s, {result.tokens} new tokens, {result.threads} "
        f"thread{'s' * (result.threads != 1)}, median of {result.rounds}",
        "a token": f"p50 {p50}, p90 {p90}, p99 {p99}",
        "bound": f"{result.share:.0%} of the {result.bound:,.1f} tokens/s at which this machine "
        f"can read {_size(result.read_bytes)} a token, at {result.bandwidth / GIGA:.1f} GB/s",
        "a step": result.steps,
        "weights": _size(result.weight_bytes),
        "state": f"{_size(result.state_bytes)} behind the last token",
        "peak memory": f"{peak} more than before the model was made",
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / MEBIBYTE:,.2f} MiB"


def _parts(result: Bench) -> Table:
    table = Table("part of a token", **RULED)
    for column in ("MiB read", "MFLOP", "us", "share", "of the bound"):
        table.add_column(column, justify="right")
    total = sum(part.seconds for part in result.parts)
    for part in result.parts:
        share = part.share(result.bandwidth)
        table.add_row(
            part.name,
            f"{part.nbytes / MEBIBYTE:.2f}" if part.nbytes else "",
            f"{part.flops / 1e6:.1f}" if part.flops else "",
            f"{1e6 * part.seconds:.0f}",
            f"{part.seconds / total:.0%}",
            f"{share:.0%}" if share else "",
        )
    notes = []
    if any(part.seconds < 0 for part in result.parts):
        notes.append("Below 0: a difference of two measurements, smaller than their noise.")
    if any(part.share(result.bandwidth) > 1.0 for part in result.parts):
        notes.append(
            "Above 100% of the bound: the part reads from a cache, or other programs slowed the "
            "measurement of the bandwidth, which was repeated."
        )
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    return table
