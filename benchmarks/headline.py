"""The contest that README opens with: what it found, and what a token costs at 1k and 8k.

Run: suffice compare --task stdlib --length 1024 --mechanisms CONTEST --margin 2% --out RUN
     python -m benchmarks.headline RUN

where CONTEST is standard,standard+window:64+full:6,gqa,gated_deltanet+softmax:4,mamba2,efficient.
The record goes to benchmarks/measured/stdlib.json, the picture to docs/verdict.svg; README's table
is drawn from the record. A token is timed in models of the same layers with drawn weights, on one
thread, after 1,024 and 8,192 tokens, in rounds that are interleaved over the mechanisms.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from suffice.comparison import judge, verdict_record
from suffice.comparison.report.plots import difference_plot
from suffice.comparison.results import Results, read_results
from suffice.comparison.training import state_bytes
from suffice.generate import generate
from suffice.models import LM
from suffice.train.recipes import recipe
from suffice.utils.canvas import style, svg
from suffice.utils.files import write_json
from suffice.utils.machine import machine_facts, software_versions

ROOT = Path(__file__).resolve().parents[1]
FILE, PICTURE = ROOT / "benchmarks/measured/stdlib.json", ROOT / "docs/verdict.svg"
LENGTHS = (1_024, 8_192)  # tokens that are read before the ones that are timed
NEW, ROUNDS = 16, 5  # tokens of a sample, samples


def measured(results: Results) -> dict[str, object]:
    """Return the record: the verdict, costs of training, and costs of a token."""
    cells = {}
    for cell in results.cells:
        cells.setdefault(cell.mechanism, []).append(cell)
    costs = {str(length): token_costs(list(cells), length) for length in LENGTHS}
    record = verdict_record(judge(results), results)
    judged = {one["mechanism"]: one for one in record["mechanisms"]}
    rows = {
        name: {
            "parameters": found[0].parameters_model,
            "loss": statistics.mean(cell.test_loss for cell in found),
            "train_seconds": statistics.median(cell.cost_seconds for cell in found),
            "costs": {length: of[name] for length, of in costs.items()},
            **{key: judged.get(name, {}).get(key) for key in ("difference", "outcome")},
        }
        for name, found in cells.items()
    }
    return {
        "sentence": record["sentence"],
        "notes": record["notes"],
        "margin": record["margin"],
        "python": platform.python_version(),
        "machine": {k: str(v) for k, v in (software_versions() | machine_facts()).items()},
        "core_hours": sum(cell.cost_seconds for cell in results.cells) / 3600,
        "seeds": len({cell.seed for cell in results.cells}),
        "rows": rows,
    }


def token_costs(mechanisms: list[str], length: int) -> dict[str, dict[str, float]]:
    """Return seconds of a decoded token and bytes of state after `length` tokens."""
    contest = recipe("stdlib")
    sizes = replace(contest, model=replace(contest.model, length=length + NEW))
    models = {name: sizes.build(name, contest.num_heads).eval() for name in mechanisms}
    torch.manual_seed(0)
    prompt = torch.randint(contest.model.vocabulary_size, (1, length))
    samples: dict[str, list[float]] = {name: [] for name in mechanisms}
    for _ in range(ROUNDS):
        for name, model in models.items():
            samples[name].append(_seconds(model, prompt))
    return {
        name: {
            "seconds": statistics.median(samples[name]),
            "state_bytes": state_bytes(model.specs, [length] * len(model.specs)),
        }
        for name, model in models.items()
    }


def _seconds(model: LM, prompt: torch.Tensor) -> float:
    """Return the mean seconds of a token after the first, which reads the prompt."""
    stamps: list[float] = []
    generate(model, prompt, max_new_tokens=NEW, on_token=lambda _: stamps.append(perf_counter()))
    return (stamps[-1] - stamps[0]) / (NEW - 1)


def main() -> None:
    """Write the record and the picture of a finished comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of the comparison")
    torch.set_num_threads(1)
    results = read_results(parser.parse_args().run / "results.json")
    record = measured(results)
    write_json(FILE, record)
    with style():
        PICTURE.write_text(svg(difference_plot(results, judge(results)), "stdlib"))
    print(json.dumps(record["rows"], indent=1))


if __name__ == "__main__":
    main()
