"""Is a window with sinks, untrained, as good as a linear conversion after healing?

Run: python -m benchmarks.windows SUBJECT --work FOLDER [--steps N] [--targets A B] [--figure FILE]
     [--length N] [--device cuda]

SUBJECT is stories260K, shakespeare_char (trained before into FOLDER/shakespeare_char by `suffice
train`) or the folder of any model that `suffice train` left, whose corpus is then read again. Each
target is converted and measured without and after healing; a result is written as soon as it is
there, and what is there is not made again. All healings have the same steps on the same rows, and
share one control: the model itself after those steps.

Losses are paired by row of held-out text. The needle is a cue of two and a key of three random
tokens, 1/4, 1/2 and all of the context before the cue comes again. Small models seldom answer it,
so that a copy is measured besides: by how many nats a token of a stretch of text is likelier behind
that stretch, 1/8, 1/4 and 1/2 of the context before, than behind another one.
Tokens/s are medians of interleaved rounds, which other work on the machine disturbs alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.report import CONSOLE, print_machine
from suffice.comparison.evaluation import passkey, scores
from suffice.convert import convert
from suffice.convert.calibration import BATCH_SIZE
from suffice.convert.certificate import change_of_loss, row_losses
from suffice.convert.heal import Healing, Texts, heal
from suffice.convert.heal.text import split_corpus
from suffice.convert.search.options import memory_of, state_bytes
from suffice.convert.sources import open_source
from suffice.generate import generate
from suffice.memory import Dynamic
from suffice.models import LM
from suffice.quantise.report import rows_of
from suffice.text import corpus
from suffice.utils.canvas import (
    COLOURS,
    MARKERS,
    blank,
    panels_width,
    plain_powers,
    style,
    svg,
)
from suffice.utils.statistics import summarise
from suffice_papers.conversion import SUBJECTS, Subject

LENGTH = 256  # tokens of a row, unless told otherwise
CALIBRATION = 1 << 15  # tokens
BATCH = 8  # rows of a step of healing
NEEDLES = {"1/4": 0.75, "1/2": 0.5, "all": 0.0}  # distance: where the key stands
COPIES = {"1/8": 8, "1/4": 4, "1/2": 2}  # distance: share of the context
ASKED = 32  # rows of a needle and of a copy
NEW, ROUNDS = 64, 5  # tokens that are written, and how often


def targets_for(lm: LM, length: int) -> list[str]:
    """Return windows of an eighth of the text and of a linear layer's bytes, and the others."""
    spec = lm.specs[0]
    linear = spec.kv_heads * spec.head_width * (spec.head_width + 1)  # numbers
    equal = max(linear // (2 * spec.widths.kv), 5)
    targets = [f"window:{size - 4}+sinks:4" for size in dict.fromkeys((length // 8, equal))]
    targets += ["linear", "gla", f"gqa:{max(spec.kv_heads // 2, 1)}"]
    if spec.position.rotates:
        targets.append(f"mla:{spec.widths.kv}")
    return targets


def subject_of(name: str, work: Path) -> Subject:
    """Return a model and its texts."""
    if name in SUBJECTS:
        return SUBJECTS[name](work)
    source = open_source(Path(name))
    text = corpus(json.loads((Path(name) / "config.json").read_text())["corpus"])
    train, validation, held_out = split_corpus(text)
    return Subject(
        source=source, calibration=train, train=train, validation=validation, held_out=held_out
    )


class Bench:
    """One model, its texts as tokens, and the folder of what was measured."""

    def __init__(
        self, name: str, work: Path, steps: int, length: int = LENGTH, device: str = "cpu"
    ) -> None:
        self.name, self.steps, self.device = Path(name).name, steps, device
        self.folder = work / "windows" / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        subject = subject_of(name, work)
        self.lm: LM = subject.source.model.eval()
        self.length = min(length, self.lm.config.length)
        tokenizer = subject.source.tokenizer
        documents = subject.train, subject.validation, subject.held_out
        self.texts = Texts.write(work / "tokens" / self.name, documents, tokenizer)
        self.rows = self.texts.rows(self.length)
        read = rows_of(subject.calibration, tokenizer, length=self.length, tokens=CALIBRATION)
        self.calibration = list(read.split(BATCH_SIZE))
        special = {tokenizer.begin, tokenizer.end}
        ids = [n for n in range(tokenizer.vocabulary_size) if n not in special]
        self.symbols, self.begin = torch.tensor(ids), tokenizer.begin
        self.before = self.losses(self.lm)

    def losses(self, lm: LM) -> list[float]:
        """Return the loss of each held-out row."""
        return row_losses(lm.to(self.device).eval(), self.rows)

    def measured(self, kind: str, target: str, lm: LM) -> dict[str, Any]:
        """Return what one model loses, recalls and keeps."""
        change = change_of_loss(self.before, self.losses(lm), self.rows[:, 1:].numel())
        return {
            "kind": kind,
            "target": target,
            "loss": [change.after, change.change, change.low, change.high],
            "state": sum(state_bytes(spec, self.length) for spec in lm.specs),
            "needles": {name: self.needle(lm, depth) for name, depth in NEEDLES.items()},
            "copies": {name: self.copy(lm, self.length // n) for name, n in COPIES.items()},
        }

    def needle(self, lm: LM, depth: float) -> list[float]:
        """Return the share of the key's tokens that are right, with its interval."""
        sizes = {"length": self.length, "rows": ASKED, "begin": self.begin}
        right, _ = scores(lm, passkey(self.symbols, depth=depth, **sizes))
        return _ends(right)

    @torch.inference_mode()
    def copy(self, lm: LM, length: int) -> list[float]:
        """Return the nats that a stretch of this many tokens gains behind itself."""
        stretches = self.rows[: ASKED + 1, :length]
        again, other = stretches[1:], stretches[:-1]
        behind = (torch.cat([first, again], dim=1) for first in (again, other))
        known, unknown = (_last_losses(lm, rows, length - 1) for rows in behind)
        return _ends((unknown - known).tolist())

    def converted(self, target: str) -> LM:
        """Return the model with a target: windows as they are, the others fitted."""
        untrained = target.startswith("window")
        return convert(self.lm.cpu(), target, calibration=self.calibration, naive=untrained).model

    def healed(self, target: str, student: Callable[[], LM]) -> tuple[LM, dict[str, Any]]:
        """Heal a model; the control is read from the first healing."""
        place, control = self.folder / _file(target), self.folder / "control.safetensors"
        place.mkdir(exist_ok=True)
        if control.exists():
            shutil.copy(control, place / control.name)
        settings = Healing(minutes=None, steps=self.steps, length=self.length, batch_size=BATCH)
        result = heal(
            student(),
            self.lm,
            self.texts,
            healing=settings,
            device=self.device,
            folder=place,
            resume=True,
        )
        shutil.copy(place / control.name, control)
        report = result.report
        facts = {
            name: [change.after, change.change, change.low, change.high]
            for name, change in (
                ("control", report.control),
                ("against_control", report.against_control),
            )
        }
        tokens = report.stages[-1].tokens
        return result.model, {**facts, "steps": report.stages[-1].steps, "tokens": tokens}

    def run(self, targets: Sequence[str]) -> list[dict[str, Any]]:
        """Return every result, those that are there from their files."""
        results = [self.once("untouched", "", lambda: (self.lm, {}))]
        for target in targets:
            CONSOLE.print(f"{self.name} to {target}", highlight=False)
            student = cache(partial(self.converted, target))  # made where something is missing
            results.append(self.once("unhealed", target, lambda made=student: (made(), {})))
            if self.steps:
                results.append(self.once("healed", target, partial(self.healed, target, student)))
        return results

    def path(self, kind: str, target: str) -> Path:
        """Return the file of one result."""
        return self.folder / f"{kind} {_file(target)}.json"

    def once(self, kind: str, target: str, make: Any) -> dict[str, Any]:
        """Return a result, made if it is not there."""
        path = self.path(kind, target)
        if not path.exists():
            began = time.monotonic()
            lm, facts = make()
            result = self.measured(kind, target, lm) | facts
            result["minutes"] = (time.monotonic() - began) / 60
            path.write_text(json.dumps(result, indent=1))
        return json.loads(path.read_text())

    def speeds(self, targets: Sequence[str]) -> dict[str, float]:
        """Return tokens/s of one text behind rows of the context's length less what is written."""
        made = {target: convert(self.lm.cpu(), target, naive=True).model for target in targets}
        models = {"": self.lm} | made  # what weights are makes no difference
        prompt = self.rows[:1, : self.length - NEW]
        seconds: dict[str, list[float]] = {target: [] for target in models}
        for _ in range(ROUNDS + 1):
            for target, lm in models.items():
                seconds[target].append(_seconds(lm, prompt))
        medians = {target: statistics.median(each[1:]) for target, each in seconds.items()}
        return {target: (NEW - 1) / median for target, median in medians.items()}


def _ends(values: Sequence[float]) -> list[float]:
    summary = summarise(values)
    return [summary.mean, summary.low, summary.high]


def _last_losses(lm: LM, rows: Tensor, count: int) -> Tensor:
    """Return the mean loss of the last tokens of each row."""
    rows = rows.to(lm.device)
    logits = lm(rows[:, :-1])[:, -count:].double().transpose(1, 2)
    return F.cross_entropy(logits, rows[:, -count:], reduction="none").mean(dim=1)


def _file(target: str) -> str:
    return target.replace(":", "-")


def _seconds(lm: LM, prompt: Tensor) -> float:
    """Return the seconds of the tokens after the first new one."""
    memories = {memory_of(spec) for spec in lm.specs}
    memory = memories.pop() if len(memories) == 1 else Dynamic()
    times: list[float] = []
    generate(
        lm,
        prompt,
        max_new_tokens=NEW,
        memory=memory,
        on_token=lambda *_: times.append(time.perf_counter()),
    )
    return times[-1] - times[0]


def lines(results: Sequence[dict[str, Any]], speeds: dict[str, float]) -> Iterator[str]:
    """Yield the results as two tables in Markdown; +- is half of a 95% interval over rows."""
    heads = ("target", "healed", "loss", "change", "against the control", "KV cache kB", "tokens/s")
    yield from _head(heads)
    for one in results:
        changed, against = one["target"], one.get("against_control")
        timed = speeds and one["kind"] != "healed"
        yield _row(
            one["target"] or "untouched",
            "yes" if one["kind"] == "healed" else "",
            f"{one['loss'][0]:.3f}",
            _interval(one["loss"][1:]) if changed else "",
            _interval(against[1:]) if against else "",
            f"{one['state'] / 1e3:.1f}",
            f"{speeds[one['target']]:.0f}" if timed else "",
        )
    yield ""
    names = [f"needle at {name}" for name in NEEDLES] + [f"copy at {name}, nats" for name in COPIES]
    yield from _head(("target", "healed", *names))
    for one in results:
        needles = (f"{100 * right:.0f}%" for right, *_ in one["needles"].values())
        copies = map(_interval, one["copies"].values())
        healed = "yes" if one["kind"] == "healed" else ""
        yield _row(one["target"] or "untouched", healed, *needles, *copies)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(names: Sequence[str]) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _interval(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:+.3f} ± {(high - low) / 2:.3f}"


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw losses by bytes of state, one panel a model; bars are 95% intervals.

    What is not healed is held against the model, what is healed against the control.
    """
    with style():
        figure, (axes, *_) = blank(1, len(results), width=panels_width(len(results)), height=4.2)
        for panel, (name, each) in zip(axes, results.items(), strict=True):
            targets = [one["target"] for one in each if one["kind"] == "unhealed"]
            for one in each:
                if not one["target"]:
                    continue
                number, healed = targets.index(one["target"]), one["kind"] == "healed"
                mean, low, high = one["against_control" if healed else "loss"][1:]
                panel.errorbar(
                    one["state"] / 1e3 * (1.04 if healed else 1.0),
                    mean,
                    yerr=[[mean - low], [high - mean]],
                    color=COLOURS[number % len(COLOURS)][0],
                    marker=MARKERS[number % len(MARKERS)],
                    markerfacecolor=None if healed else "none",
                    linestyle="none",
                    label=None if healed else one["target"],
                )
            panel.set_title(name)
            panel.set_xscale("log")
            plain_powers(panel.xaxis)
            panel.axhline(0.0, linewidth=0.8)
            panel.set_xlabel("state, kB (filled: healed, above the control)")
            panel.set_ylabel("nats per token above the model")
            panel.legend(loc="best")
        path.write_text(svg(figure, path.stem))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT")
    parser.add_argument("--work", type=Path, required=True, help="folder of the results")
    parser.add_argument("--steps", type=int, default=400, help="of each healing; 0 heals nothing")
    parser.add_argument("--length", type=int, default=LENGTH, help="most tokens of a row")
    parser.add_argument("--device", default="cpu", help="of losses and healing: cpu or cuda")
    parser.add_argument("--targets", nargs="+", help="instead of the usual ones")
    parser.add_argument("--figure", type=Path, help="SVG to write")
    parser.add_argument("--without-speed", action="store_true")
    given = parser.parse_args(words)
    print_machine()
    drawn = {}
    for name in given.subjects:
        bench = Bench(name, given.work, given.steps, given.length, given.device)
        targets = given.targets or targets_for(bench.lm, bench.length)
        results = drawn[bench.name] = bench.run(targets)
        speeds = {} if given.without_speed else bench.speeds(targets)
        CONSOLE.print("\n".join(lines(results, speeds)), highlight=False, soft_wrap=True)
    if given.figure:
        draw(drawn, given.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
