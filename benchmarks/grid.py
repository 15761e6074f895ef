"""The op each plan chooses against the best of torch's, over a grid of sizes: is a choice wrong?

A cell is one attention call. The op that is chosen for it is timed beside torch's fused attention,
with heads folded where they share keys, and the two products around a softmax, in the same
interleaved rounds; all run through the same interface. The outputs are compared first. A cell
whose choice is slower than the best of torch's by more than 5% is timed again with twice the
rounds, and listed if it is so both times.

Run: python -m benchmarks.grid [--quick] [--threads N] [--json FILE] [--only TEXT]
A run that was stopped goes on where the file of --json ends.
SUFFICE_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
before it measure an AVX2 machine on one with AVX-512.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.contest import Call, timed
from benchmarks.malloc import keep_large_temporaries
from benchmarks.report import CONSOLE, WIDE, gate, print_machine
from suffice.ops import OPS, AttentionCall
from suffice.ops.call import MaskInputs
from suffice.ops.dispatch import choose
from suffice.ops.native import library
from suffice.ops.op import Op
from suffice.patterns import Causal, Full, Global, Pattern, Random, Strided, Window
from suffice.utils.files import write_atomic
from suffice.utils.machine import machine_facts, software_versions
from suffice.utils.timing import interleave, ratio

SLOWER = 1.05
TORCHS = ("fused", "folded", "matmul")
WEIGHTS = 1 << 26  # that the products around a softmax may form
WORK = 4e10  # multiplications and additions of a dense cell's forward pass
FAR = 4.0  # times the fastest: such an op is timed once
LONG = 0.05  # seconds of a call, from which fewer rounds do
CLOSE = {torch.float32: 2e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
QUICK_STEP = 7  # every so many cells; no divisor of the grid's periods

LONGFORMER = Window(256) | Global(4)
BIGBIRD = Window(128) | Global(32) | Random(64)
PATTERNS: dict[str, Pattern] = {
    "dense": Full(),
    "causal": Causal(),
    "window 64": Window(64) & Causal(),
    "window 512": Window(512) & Causal(),
    "longformer": LONGFORMER,
    "bigbird": BIGBIRD,
    "strided": Strided(64) & Causal(),
}
SPARSE = ("window 64", "window 512", "longformer", "bigbird", "strided")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One attention call; T queries stand last among S keys."""

    batch: int
    heads: int
    kv_heads: int
    width: int
    queries: int
    keys: int
    pattern: str
    dtype: torch.dtype = torch.float32
    backward: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return (
            f"{'both' if self.backward else 'forward'} {str(self.dtype).removeprefix('torch.')} "
            f"{self.pattern} B={self.batch} H={heads} D={self.width} T={self.queries} S={self.keys}"
        )

    @property
    def work(self) -> float:
        """Multiplications and additions of the forward pass, were it dense."""
        return 4.0 * self.batch * self.heads * self.width * self.queries * self.keys

    def call(self) -> AttentionCall:
        """Return the call."""
        return AttentionCall(
            queries=self.queries,
            keys=self.keys,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.width,
            value_dim=self.width,
            scale=self.width**-0.5,
            pattern=PATTERNS[self.pattern],
            dtype=self.dtype,
            grad=self.backward,
        )


def cells() -> Iterator[Cell]:
    """Give the grid."""
    shared = ((8, 8), (8, 2), (8, 1), (32, 8))
    few = product((1, 4), (16, 64, 256, 1024, 4096, 16384, 32768), shared, (64, 128), DTYPES)
    for queries, keys, (heads, kv_heads), width, dtype in few:
        if (heads > 8 or width > 64) and keys > 16384:
            continue
        sizes = {"heads": heads, "kv_heads": kv_heads, "width": width, "dtype": dtype}
        yield Cell(batch=1, queries=queries, keys=keys, pattern="causal", **sizes)
    chunks = product(((16, 1024), (64, 4096), (256, 4096), (512, 16384)), ("dense", "causal"))
    for ((queries, keys), pattern), kv_heads, dtype in product(chunks, (8, 2), DTYPES):
        yield Cell(
            batch=1, heads=8, kv_heads=kv_heads, width=64, queries=queries, keys=keys,
            pattern=pattern, dtype=dtype,
        )  # fmt: skip
    shapes = (
        (1, 8, 64),
        (8, 8, 32),
        (32, 4, 64),
        (1, 8, 128),
        (8, 2, 128),
        (1, 1, 256),
        (8, 1, 256),
    )
    lengths = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    whole = product((False, True), DTYPES, PATTERNS, shapes, lengths)
    for backward, dtype, pattern, (batch, heads, width), length in whole:
        unusual = dtype is not torch.float32 or pattern in SPARSE
        if unusual and (batch, heads, width) not in shapes[:2]:
            continue
        if pattern in SPARSE and length < 256:
            continue
        cell = Cell(
            batch=batch, heads=heads, kv_heads=heads, width=width, queries=length, keys=length,
            pattern=pattern, dtype=dtype, backward=backward,
        )  # fmt: skip
        if cell.work * (3 if backward else 1) <= WORK:
            yield cell


def calls_of(cell: Cell) -> tuple[str, dict[str, Call]]:
    """Return the op that is chosen, and the calls of it and of torch's, by op."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    sizes = ((cell.heads, cell.queries), (cell.kv_heads, cell.keys), (cell.kv_heads, cell.keys))
    inputs = [  # as the heads of a layer lie in memory
        draw(cell.batch, length, heads, cell.width).transpose(1, 2).to(cell.dtype)
        for heads, length in sizes
    ]
    call, masks = cell.call(), MaskInputs()
    chosen = choose(call).name
    ops = dict.fromkeys((chosen, *TORCHS))
    few = cell.batch * cell.heads * cell.queries * cell.keys <= WEIGHTS
    calls = {}
    for name in ops:
        if OPS[name].refuses(call) or (name == "matmul" and name != chosen and not few):
            continue
        torch.manual_seed(0)  # one gradient of the outputs for all
        compute = partial(_compute, OPS[name], masks, call)
        calls[name] = timed(compute, inputs, backward=cell.backward)
    return chosen, calls


def _compute(op: Op, masks: MaskInputs, call: AttentionCall, *tensors: Tensor) -> Tensor:
    return op(*tensors, masks, call)


def measure(cell: Cell, rounds: int) -> dict[str, object]:
    """Return the cell, the op that is chosen, torch's best, and the ratio of their times."""
    chosen, calls = calls_of(cell)
    if chosen not in TORCHS:
        got, want = calls[chosen](), calls["fused"]()
        pairs = zip(got, want, strict=True) if cell.backward else [(got, want)]
        for ours, theirs in pairs:
            gate(str(cell), ours, theirs, CLOSE[cell.dtype] * max(1.0, float(theirs.abs().max())))
    for attempt in (1, 2):
        times = _times(calls, attempt * rounds)
        best = min((name for name in TORCHS if name in times), key=lambda n: _median(times[n]))
        found = ratio(times[chosen], times[best])
        if found <= SLOWER:
            break
    medians = {name: _median(samples) for name, samples in times.items()}
    return {"cell": str(cell), "op": chosen, "best": best, "ratio": found, "seconds": medians}


def _times(calls: dict[str, Call], rounds: int) -> dict[str, tuple[float, ...]]:
    if len(calls) == 1:
        return dict.fromkeys(calls, (1.0,))
    once = interleave(calls, rounds=1, warmup=1, min_seconds_per_sample=1e-4)
    fastest = min(times[0] for times in once.values())
    near = {name: calls[name] for name, times in once.items() if times[0] < FAR * fastest}
    far = {name: times for name, times in once.items() if name not in near}
    number = max(5, rounds // 3) if fastest > LONG else rounds
    times = interleave(near, rounds=number, warmup=1, min_seconds_per_sample=2e-3)
    return {**times, **{name: samples * number for name, samples in far.items()}}


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def print_slower(results: list[dict], title: str) -> None:
    """Print the cells whose op is slower than the best of torch's, the worst first."""
    slower = sorted((r for r in results if r["ratio"] > SLOWER), key=lambda r: -r["ratio"])
    table = Table(title=title, title_justify="left")
    for column in ("cell", "op", "best", "op ms", "best ms", "ratio"):
        table.add_column(column, justify="left" if column in ("cell", "op", "best") else "right")
    for r in slower:
        seconds = r["seconds"]
        ours, best = (f"{1e3 * seconds[r[name]]:.3f}" for name in ("op", "best"))
        table.add_row(r["cell"], r["op"], r["best"], ours, best, f"{r['ratio']:.2f}")
    if slower:
        WIDE.print(table)
    means = []
    for op in dict.fromkeys(r["op"] for r in results):
        logs = [math.log(r["ratio"]) for r in results if r["op"] == op]
        means.append(f"{op} {math.exp(statistics.fmean(logs)):.2f} ({len(logs)} cells)")
    CONSOLE.print(f"{len(slower)} of {len(results)} cells are slower by more than 5%.")
    CONSOLE.print(f"Geometric means of op / best of torch's: {', '.join(means)}.", soft_wrap=True)


def _read(path: Path | None, machine: dict[str, object]) -> dict[str, dict]:
    """Return the cells that the file holds, by name; refuse those of other facts."""
    if path is None or not path.exists():
        return {}
    kept = json.loads(path.read_text())
    if changed := [fact for fact in machine if kept["machine"].get(fact) != machine[fact]]:
        raise SystemExit(f"{path} was measured with another {', '.join(changed)}: name a new file")
    return {cell["cell"]: cell for cell in kept["cells"]}


def _write(path: Path | None, machine: dict[str, object], found: dict[str, dict]) -> None:
    if path is not None:
        lines = ",\n".join(json.dumps(_rounded(cell)) for cell in found.values())
        write_atomic(path, f'{{"machine": {json.dumps(machine)},\n"cells": [\n{lines}\n]}}\n')


def _rounded(value: object) -> object:
    """Return figures with four digits, which is more than a time is good for."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(words: Sequence[str] | None = None) -> int:
    """Print the cells whose choice is wrong; return 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of the grid: two minutes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write all cells, each when it is timed")
    parser.add_argument("--only", default="", help="cells whose line contains this text")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    instructions = library.instructions() if library.available() else "none"
    capability = torch.backends.cpu.get_cpu_capability()
    CONSOLE.print(f"native kernels: {instructions}; torch: {capability}")
    grid = [cell for cell in cells() if options.only in str(cell)]
    grid = grid[::QUICK_STEP] if options.quick else grid
    rounds = 5 if options.quick else 15
    machine = {**software_versions(), **machine_facts(), "instructions": instructions}
    machine |= {"capability": capability, "rounds": rounds}
    found = _read(options.json, machine)
    for cell in track(grid, console=CONSOLE, transient=True):
        if str(cell) not in found:
            found[str(cell)] = measure(cell, rounds)
            _write(options.json, machine, found)
    results = [found[str(cell)] for cell in grid]
    print_slower(results, f"Slower than the best of torch's, {instructions}")
    return int(any(r["ratio"] > SLOWER for r in results))


if __name__ == "__main__":
    raise SystemExit(main())
