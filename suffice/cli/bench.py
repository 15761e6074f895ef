"""`suffice bench`: how fast a model writes here, alone and against others."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from suffice.cli import completed
from suffice.cli.benched import print_bench, print_peers
from suffice.cli.defaults import CHECKPOINT
from suffice.cli.memories import LEGAL, memory_of
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.measure.edge.run import Run
    from suffice.memory import Memory
    from suffice.models import LM

PEERS = "llama.cpp, transformers, onnxruntime"


def bench(
    checkpoint: Annotated[Path | None, typer.Argument(help=CHECKPOINT)] = None,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of a shape instead: 15m or 110m.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="Of a weight: 32, 16, 8 or 4; as it is unless given.")
    ] = None,
    mechanism: Annotated[
        str, typer.Option(help="Attention of a shape.", autocompletion=completed.mechanisms)
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
    against: Annotated[
        str, typer.Option(help=f"Peers that write in turn with it, with commas: {PEERS}.")
    ] = "",
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
) -> None:
    """Measure a model on this CPU: speed, latency, memory, and the share of what is possible."""
    from suffice.measure.edge.bench import bench as measure
    from suffice.measure.edge.peers import named
    from suffice.measure.edge.resident import resident

    _check(tokens, prompt, rounds, threads)
    names = named(against)
    kept = memory_of(memory, quantise_memory)
    before, found = torch.get_num_threads(), resident()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        lm = _model(checkpoint, shape, mechanism, bits)
        console = Console(highlight=False)
        sizes = {"prompt": prompt, "new": tokens, "rounds": rounds}
        told = measure(lm, kept, **sizes, before=found)
        if quantise_memory is not None:
            memory = f"{memory} in {quantise_memory} bits"
        print_bench(console, told, shape or str(checkpoint), bits, memory)
        runs = {}
        if names:
            whole = _model(checkpoint, shape, mechanism, None)
            runs = _against(names, whole, lm, kept, bits or 32, sizes)
            print_peers(console, runs)
    finally:
        torch.set_num_threads(before)
    if json is not None:
        _write(json, told, runs, {"shape": shape, "bits": bits, "memory": memory})


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


def _against(
    names: list[str], whole: LM, lm: LM, kept: Memory, bits: int, sizes: dict[str, int]
) -> dict[str, list[Run]]:
    """Let peers write in turn with a model, once they compute what it computes whole."""
    from suffice.measure.edge.ours import Ours
    from suffice.measure.edge.peers import peer
    from suffice.measure.edge.session import check_alike, session
    from suffice.measure.edge.shapes import prompt_of

    ids, new = prompt_of(whole, sizes["prompt"]), sizes["new"]
    sides, exact = [Ours(lm, kept)], Ours(whole)
    with tempfile.TemporaryDirectory() as folder:
        made = {"room": len(ids) + new, "folder": Path(folder)}
        for name in names:
            side, own = peer(name, whole, bits=32, **made), 32
            check_alike(exact, side, ids)
            if bits != own and name != "transformers":  # whose generate() has weights of 32 bits
                side, own = peer(name, whole, bits=bits, **made), bits
                check_alike(exact, side, ids, own)
            sides.append(side)
        return session(sides, ids, new, sizes["rounds"])


def _write(path: Path, told: Any, runs: dict[str, list[Run]], asked: dict[str, Any]) -> None:
    import json

    from suffice.measure.machine import machine_facts, software_versions, source_commit
    from suffice.measure.storage import write_atomic

    facts = {**machine_facts(), **software_versions(), "commit": source_commit()}
    content = {"asked": asked, "found": asdict(told), "machine": facts}
    content["runs"] = {name: [asdict(run) for run in own] for name, own in runs.items()}
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
