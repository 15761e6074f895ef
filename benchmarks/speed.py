"""Bars of speed: a window, a recurrence and a decoded token against the fastest named peer.

Run: python -m benchmarks.speed [--case NAME]

Each case is checked against the float64 reference or the peer's logits, then timed in interleaved
rounds. A result goes to benchmarks/measured/speed.json at once; `make docs` draws the bars from it.
A token is decoded by `python -m benchmarks.edge` against every engine that is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import recurrence
from benchmarks.cases import SIZE, drawn, posed, softmax
from benchmarks.contest import FULL
from benchmarks.peers import flex
from benchmarks.report import gate, peer_versions
from suffice.ops.native import library
from suffice.patterns import Causal, Window
from suffice.utils.machine import machine_facts, software_versions

FILE = Path(__file__).parent / "measured" / "speed.json"
WINDOW_LENGTH, SCAN_LENGTH = 16_384, 2_048  # tokens
SHAPE, BITS = "110m", 8  # of the decoded model


def window() -> dict[str, object]:
    """A causal window, forward: compiled FlexAttention with its block mask."""
    pattern = Window(SIZE) & Causal()
    ours = softmax(pattern, WINDOW_LENGTH, backward=False)
    peer = flex.side(drawn(WINDOW_LENGTH), posed(pattern, WINDOW_LENGTH))
    for side in (ours, peer):
        side.check()
    times = FULL.times({"ours": ours.call, "peer": peer.call})
    title = f"causal window of {SIZE}, {WINDOW_LENGTH:,} tokens"
    return _case(title, "FlexAttention, compiled", times)


def scan() -> dict[str, object]:
    """The gated delta rule over a sequence: the chunked form of transformers."""
    data = recurrence.inputs(SCAN_LENGTH)
    gate("chunked delta rule", recurrence.ours(*data), recurrence.theirs(*data), 1e-3)
    with torch.inference_mode():
        calls = {"ours": lambda: recurrence.ours(*data), "peer": lambda: recurrence.theirs(*data)}
        times = FULL.times(calls)
    return _case(f"gated delta rule, {SCAN_LENGTH:,} tokens", "transformers, chunked", times)


def decode() -> dict[str, object]:
    """A token of a Llama-like model with packed weights: the fastest of the engines."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        words = ["--case", "decode", "--shape", SHAPE, "--bits", str(BITS), "--json", str(rows)]
        subprocess.run([sys.executable, "-m", "benchmarks.edge", *words], check=True)
        found = [row for case in json.loads(rows.read_text())["cases"].values() for row in case]
    if silent := [
        f"{row['peer']}: {row['standing']}"
        for row in found
        if "pip install" in row["standing"] or "WRONG" in row["standing"]
    ]:
        raise SystemExit(f"the fastest engine may be missing (make .venv/.peers): {silent}")
    engines = [row for row in found if row["value"].endswith("x")]
    best = min(engines, key=lambda row: float(row["value"][:-1]))  # our rate over its own
    ours, theirs = (1 / float(best[side].partition("/")[0]) for side in ("ours", "theirs"))
    return {
        "title": f"a token of {SHAPE.upper()} parameters in {BITS} bits",
        "peer": best["peer"],
        "engines": sorted(row["peer"] for row in engines),
        "seconds": {"ours": ours, "peer": theirs},
        "ratio": float(best["value"][:-1]),
    }


CASES = {"window": window, "recurrence": scan, "decode": decode}


def _case(title: str, peer: str, times: dict[str, tuple[float, ...]]) -> dict[str, object]:
    ratios = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
    seconds = {name: statistics.median(found) for name, found in times.items()}
    return {"title": title, "peer": peer, "seconds": seconds, "ratio": statistics.median(ratios)}


def main() -> None:
    """Measure the cases and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=CASES, action="append")
    measured = json.loads(FILE.read_text()) if FILE.exists() else {"cases": {}}
    facts = software_versions() | machine_facts() | peer_versions()
    measured["machine"] = {name: str(value) for name, value in facts.items()}
    measured["instructions"] = library.instructions()
    torch.set_num_threads(2)
    for name in parser.parse_args().case or CASES:
        measured["cases"][name] = CASES[name]()
        FILE.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
