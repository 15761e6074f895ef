"""SmolLM2-135M with cheaper attention, caches and weights: nats lost, bytes of state, speed.

Run: make models; python -m benchmarks.smollm2 [--minutes N] [--only ROW ...] [--figure FILE]

The GGUF file is unpacked to float32 and converted, without any training after it. The loss is that
of the first 1,024 tokens of 16 articles of WikiText-2's validation part; fits read
8,192 tokens of its test part in rows of 256. Differences from the model as it was are paired by
article, with 95% intervals over articles. State is counted after 8,192 tokens; speed is that of one
core decoding behind such a text over that of the model as it was, in rounds that take turns.

Each row is kept in benchmarks/measured/smollm2.json as soon as it is there. A second call goes on
with the rows that are missing; none begins after --minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import models
from benchmarks.report import CONSOLE
from suffice.convert import convert
from suffice.convert.calibration import BATCH_SIZE, ROW_LENGTH, attention_layers
from suffice.convert.certificate import row_losses
from suffice.convert.convert import with_layers
from suffice.convert.search.options import memory_of
from suffice.convert.sources import open_source
from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Quantised
from suffice.models import LM
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.quantise import quantise
from suffice.quantise.report import rows_of
from suffice.text import corpus
from suffice.utils.canvas import COLOURS, blank, plain_powers, style, svg
from suffice.utils.files import write_json
from suffice.utils.machine import machine_facts, software_versions
from suffice.utils.statistics import summarise
from suffice.utils.timing import interleave, summarise_times

FILE = Path(__file__).parent / "measured" / "smollm2.json"
TASKS = ("hellaswag", "arc_easy", "piqa")
TEXTS, LENGTH = 16, 1024  # articles, and tokens of each
CALIBRATION = 8192  # tokens
BEHIND = 8192  # tokens that state and speed are measured after
CHUNK = 64  # tokens that are read at once where the cache is rounded
HALF = 15  # layers that are converted where only half of them are
ROUNDS = 9
LEFT = ("gqa:1", "gqa:1 in 15 layers", "K and V in 8 bits")  # labels of the figure beside others


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table: how the model is changed, and what its cache rounds."""

    make: Callable[[Subject], LM]
    memory: Memory | None = None  # None: what the layers can reach, in float32


class Subject:
    """The model, and texts as tokens."""

    def __init__(self, path: Path) -> None:
        source = open_source(path, packed=False)
        self.lm: LM = source.model.eval().requires_grad_(False)
        self.tokenizer = source.tokenizer
        text = corpus("wikitext2")
        articles = [self.tokenizer.encode(one)[:LENGTH] for one in text.validation]
        whole = [ids for ids in articles if len(ids) == LENGTH]
        self.rows = torch.tensor(whole[:TEXTS])
        read = rows_of(text.test, self.tokenizer, length=ROW_LENGTH, tokens=CALIBRATION)
        self.calibration = list(read.split(BATCH_SIZE))

    @cache  # noqa: B019 - one subject a process
    def converted(self, target: str) -> tuple[LM, Mapping[str, float]]:
        """Return the model with a target and the errors of its layers; windows are not fitted."""
        window = target.startswith("window")
        result = convert(
            self.lm,
            target,
            calibration=None if window else self.calibration,
            held_out=self.calibration[:1],
            naive=window,
        )
        errors = {one.name: one.measured or 0.0 for one in result.certificate.layers}
        return result.model, errors

    def half(self, target: str) -> LM:
        """Return the model with a target in the layers whose outputs it changes least."""
        model, errors = self.converted(target)
        layers = attention_layers(model)
        least = sorted(errors, key=lambda name: errors[name])[:HALF]
        return with_layers(self.lm, {name: layers[name] for name in least})

    def packed(self, bits: int) -> LM:
        """Return the model with weights in fewer bits, each rounded to the nearest."""
        model = with_layers(self.lm, {})
        quantise(model, bits)
        return model

    def losses(self, lm: LM, memory: Memory | None) -> list[float]:
        """Return the loss of each article; with a memory its cache is read as it is kept."""
        if memory is None:
            return row_losses(lm, self.rows)
        return [loss for rows in self.rows.split(4) for loss in _streamed(lm, memory, rows)]


def _converted(target: str) -> Case:
    return Case(make=lambda subject: subject.converted(target)[0])


def _half(target: str) -> Case:
    return Case(make=lambda subject: subject.half(target))


def _cached(**bits: int) -> Case:
    return Case(make=lambda subject: subject.lm, memory=Quantised(**bits))


CASES = {
    "as it was": Case(make=lambda subject: subject.lm),
    "window:512+sinks:4": _converted("window:512+sinks:4"),
    "window:256+sinks:4": _converted("window:256+sinks:4"),
    f"window:256+sinks:4 in {HALF} layers": _half("window:256+sinks:4"),
    "K and V in 8 bits": _cached(bits=8),
    "K in 8 bits, V in 4": _cached(bits=8, value_bits=4),
    "K and V in 4 bits": _cached(bits=4),
    "weights in 8 bits": Case(make=lambda subject: subject.packed(8)),
    "weights in 4 bits": Case(make=lambda subject: subject.packed(4)),
    "gqa:1": _converted("gqa:1"),
    f"gqa:1 in {HALF} layers": _half("gqa:1"),
    "share:2": _converted("share:2"),
    "latent:192": _converted("latent:192"),
    "linear": _converted("linear"),
    "mla:192": _converted("mla:192"),
}


@torch.inference_mode()
def _streamed(lm: LM, memory: Memory, rows: Tensor) -> list[float]:
    state, losses = lm.state(memory), []
    for chunk, wanted in zip(
        rows[:, :-1].split(CHUNK, 1), rows[:, 1:].split(CHUNK, 1), strict=True
    ):
        logits = lm(chunk, state=state).transpose(1, 2)
        losses.append(F.cross_entropy(logits, wanted, reduction="none").double())
    return torch.cat(losses, dim=1).mean(dim=1).tolist()


def measured(subject: Subject, case: Case) -> dict[str, Any]:
    """Return what a case loses and keeps; or why the model cannot become it."""
    began = time.monotonic()
    try:
        lm = case.make(subject)
    except ConfigError as error:
        return {"refused": str(error)}
    state = sum(
        spec.state_bytes(BEHIND, case.memory or memory_of(spec, spare=0)) for spec in lm.specs
    )
    return {
        "losses": subject.losses(lm, case.memory),
        "state": state,
        "weights": sum(one.nbytes for one in (*lm.parameters(), *lm.buffers())),
        "seconds": time.monotonic() - began,
    }


class Speed:
    """Decoding behind a long text, beside the model as it was."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.before = self.stepper(subject.lm, Dynamic())

    def stepper(self, lm: LM, memory: Memory) -> Callable[[], object]:
        """Return a call that decodes one more token, natively where the kernels can."""
        state, reads = lm.state(memory), NativeDecoder
        ids = self.subject.rows.flatten()[:BEHIND][None]
        with torch.inference_mode():
            for chunk in ids.split(512, dim=1):
                lm.features(chunk, state=state)
        decoder: Any = lm if unsupported(lm, memory) else reads(lm, memory)
        return torch.inference_mode()(partial(decoder.step, ids[:, 0], state))

    def __call__(self, case: Case) -> dict[str, float]:
        """Return the tokens per second of a case and of the model as it was."""
        lm = case.make(self.subject)
        memories = {memory_of(spec) for spec in lm.specs}
        memory = case.memory or (memories.pop() if len(memories) == 1 else Dynamic())
        calls = {"tokens": self.stepper(lm, memory), "tokens_before": self.before}
        samples = interleave(calls, rounds=ROUNDS, warmup=1, min_seconds_per_sample=0.2)
        return {name: 1 / summarise_times(one).median for name, one in samples.items()}


def lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table in Markdown; changes are means with 95% intervals over articles."""
    before = rows["as it was"]
    yield "| | nats per token | change | state after 8,192 tokens | weights | speed |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, row in rows.items():
        if "refused" in row:
            continue
        mean = sum(row["losses"]) / len(row["losses"])
        mean_change, low, high = change(row, before)
        changed = "" if row is before else f"{mean_change:+.3f} [{low:+.3f}, {high:+.3f}]"
        speed = f"{row['tokens'] / row['tokens_before']:.2f}x" if "tokens" in row else ""
        yield (
            f"| {name} | {mean:.3f} | {changed} | {row['state'] / 1e6:,.1f} MB | "
            f"{row['weights'] / 1e6:,.0f} MB | {speed} |"
        )


def task_lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the accuracies of `benchmarks.smollm2_tasks` in Markdown."""
    yield "| | HellaSwag | ARC-easy | PIQA |"
    yield "|---|--:|--:|--:|"
    for name, row in rows.items():
        cells = (f"{row['scores'][task]['acc']:.1%}" for task in TASKS)
        yield f"| {name} | {' | '.join(cells)} |"


def beside_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of `benchmarks.smollm2_llama_cpp` in Markdown."""
    rates, logits = found["tokens a second"], found["relative error of logits"]
    yield "| | perplexity | logits, from float32 | prompt, tokens/s | text, tokens/s |"
    yield "|---|--:|--:|--:|--:|"
    for name in ("suffice", "llama.cpp"):
        yield (
            f"| {name} | {found['perplexity'][name]:.2f} | {logits[name]:.1e} | "
            f"{rates[f'{name} prefill']:.0f} | {rates[f'{name} decode']:.0f} |"
        )


def change(row: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the change of the loss from a row to another and the ends of its interval."""
    pairs = zip(row["losses"], before["losses"], strict=True)
    found = summarise([after - first for after, first in pairs])
    low, high = (found.mean if end is None else end for end in (found.low, found.high))
    return found.mean, low, high


def draw(rows: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw nats lost against bytes of state; bars are 95% intervals over articles."""
    with style():
        figure, ((axes,),) = blank(1, 1, width=8.0, height=4.6)
        axes.set_xscale("log")
        plain_powers(axes.xaxis)
        axes.set_yscale("symlog", linthresh=0.01)
        for number, (name, row) in enumerate(rows.items()):
            if "refused" in row or name.startswith("weights"):
                continue
            mean, low, high = change(row, rows["as it was"])
            axes.errorbar(
                row["state"] / 1e6,
                mean,
                yerr=[[mean - low], [high - mean]],
                marker="o",
                linestyle="none",
                color=COLOURS[number % len(COLOURS)][0],
            )
            side = -1 if name in LEFT else 1
            axes.annotate(
                name,
                (row["state"] / 1e6, mean),
                xytext=(6 * side, 4),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
            )
        axes.axhline(0.0, linewidth=0.8)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlim(right=3000)
        axes.set_xlabel("state after 8,192 tokens, MB")
        axes.set_ylabel("nats per token lost")
        path.write_text(svg(figure, path.stem))


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, print the table and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="after which no row begins")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="ROW", help="measure these")
    parser.add_argument("--figure", type=Path, help="SVG to write")
    given = parser.parse_args(words)
    record = json.loads(FILE.read_text()) if FILE.exists() else {"rows": {}}
    rows, began = record["rows"], time.monotonic()
    torch.set_num_threads(1)
    subject = cache(lambda: Subject(models.path("smollm2")))
    speed = cache(lambda: Speed(subject()))
    for part in ("losses", "tokens"):
        for name in given.only or CASES:
            row = rows.get(name, {})
            late = time.monotonic() - began > 60 * given.minutes
            if late or part in row or "refused" in row:
                continue
            new = measured(subject(), CASES[name]) if part == "losses" else speed()(CASES[name])
            rows[name] = row | new
            facts = {**machine_facts(), **software_versions()}
            record["machine"] = {key: str(value) for key, value in facts.items()}
            ordered = {one: rows[one] for one in CASES if one in rows}
            write_json(FILE, record | {"rows": ordered})
            CONSOLE.print(name, {k: v for k, v in new.items() if k != "losses"}, highlight=False)
    rows = {one: rows[one] for one in CASES if one in rows}
    CONSOLE.print("\n".join(lines(rows)), highlight=False, soft_wrap=True, markup=False)
    if given.figure:
        draw(rows, given.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
