"""Compares mechanisms on every task of the suite and tests the trained models on its questions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from suffice.data import IGNORE_INDEX, Dataset, Split, load
from suffice.measure.compare import claim, compare
from suffice.measure.plan import Plan
from suffice.measure.probe.report import Finding, Report
from suffice.measure.probe.tasks import SOLVED, Task, View, suite, views
from suffice.measure.results import Cell, Results
from suffice.measure.statistics import summarise
from suffice.measure.training import CellFiles
from suffice.memory import Rolling
from suffice.models import LM
from suffice.models import folder as model_folder
from suffice.spec import AttentionSpec
from suffice.train import evaluate


def sees_pairs(spec: AttentionSpec) -> bool:
    """Return whether a layer reads earlier tokens only through the pairs of its pattern."""
    return spec.beyond_pairs.keys() <= {"shares"}


def receptive_field(
    specs: Sequence[AttentionSpec], *, cache_tokens: int | None = None
) -> int | None:
    """Return how many tokens back a causal model can attend to; None = all of them.

    The distances that layers attend to add up.

    Example:
        >>> from suffice import preset
        >>> receptive_field([preset("sliding_window", 16, 2, window=4, causal=True)] * 2)
        6
        >>> receptive_field([preset("standard", 16, 2, causal=True)] * 2, cache_tokens=4)
        6
        >>> receptive_field([preset("linear", 16, 2, causal=True)]) is None
        True
    """
    total = 0
    for spec in specs:
        bounds = [n for n in (spec.pattern.reach, cache_tokens) if n is not None]
        if not bounds or not sees_pairs(spec):
            return None
        total += min(bounds) - 1
    return total


def out_of_reach(
    specs: Sequence[AttentionSpec], back: int, *, cache_tokens: int | None = None
) -> str:
    """Return why a causal model cannot attend `back` tokens back; "" if it can."""
    far = receptive_field(specs, cache_tokens=cache_tokens)
    if far is None or back <= far:
        return ""
    return f"{far} tokens back can be attended to"


def state_bytes(specs: Sequence[AttentionSpec], tokens: int) -> float:
    """Return the bytes a layer keeps of so many tokens in float32, the mean of the layers.

    A layer that reaches back less far keeps what it can still see.

    Example:
        >>> from suffice import preset
        >>> state_bytes([preset("standard", 16, 2, causal=True)], 24)
        3072.0
        >>> state_bytes([preset("sliding_window", 16, 2, window=4, causal=True)], 24)
        512.0
    """
    sizes = []
    for spec in specs:
        reach = spec.pattern.reach if sees_pairs(spec) else None
        sizes.append(spec.cost(tokens).state_bytes(tokens if reach is None else min(tokens, reach)))
    return sum(sizes) / len(sizes)


def probe_mechanisms(
    mechanisms: Sequence[str],
    folder: Path,
    *,
    quick: bool = False,
    seeds: int = 3,
    device: str = "cpu",
    console: Console | None = None,
    tasks: Sequence[Task] | None = None,
) -> Report:
    """Compare the mechanisms on each task and return what the trained models answer.

    Args:
        mechanisms: names, see `suffice.presets.PRESETS`.
        folder: folder with a comparison of each task; finished cells are not trained again.
        quick: the short suite, minutes on two cores.
        seeds: trainings of each mechanism on each task, 0 .. seeds - 1.
        device: "cpu" or "cuda".
        console: where progress is shown; None shows none.
        tasks: other tasks than the suite's.

    Raises:
        ConfigError: for unknown mechanisms, such as cannot be causal, a number of seeds below 1,
            or a folder that holds other probes.
        DataError: if a file cannot be read or written.
        Interrupted: on Ctrl-C; what was done is kept.
    """
    clock = time.monotonic()
    tasks = suite(quick=quick) if tasks is None else tasks
    plans = [_plan(task, tuple(mechanisms), seeds, device) for task in tasks]
    for task, plan in zip(tasks, plans, strict=True):
        claim(plan, folder / task.name, resume=True)
    findings: list[Finding] = []
    for task, plan in zip(tasks, plans, strict=True):
        options = {"resume": True, "quiet": console is None, "command": "suffice probe"}
        place = folder / task.name
        results = compare(plan, place, console=console or Console(stderr=True), **options)
        findings += _findings(task, plan, results, place)
    facts = {"seeds": seeds, "quick": quick}
    return Report.of("mechanisms", clock, facts, findings=findings)


def _plan(task: Task, mechanisms: tuple[str, ...], seeds: int, device: str) -> Plan:
    names = task.mechanisms(mechanisms)
    heads = (task.recipe.num_heads,)
    baseline = names[0] if names else ""
    options = {"heads": heads, "seeds": seeds, "baseline": baseline, "device": device}
    return Plan(recipe=task.recipe, mechanisms=names, **options)


def _findings(task: Task, plan: Plan, results: Results, folder: Path) -> Iterator[Finding]:
    recipe = task.recipe
    dataset = load(recipe.task, **dict(recipe.task_options))
    steps = -(-len(dataset.train) // recipe.training.batch_size)
    questions = views(dataset)
    for mechanism, heads in plan.pairs:
        specs = recipe.specs(mechanism, heads)
        cells = results.select(mechanism, heads)
        models = [_trained(folder, cell) for cell in cells]
        for view in questions:
            if view.cache_tokens is not None and not _rolls(specs):
                continue
            reach = out_of_reach(specs, view.nearest, cache_tokens=view.cache_tokens)
            beyond = f"{reach}, and the answer is {view.nearest} or more" if reach else ""
            right = [_accuracy(model, dataset, view, plan.device) for model in models]
            yield Finding(
                task=task.name,
                mechanism=mechanism,
                view=view.name,
                accuracy=summarise(right),
                chance=float(dataset.chance or 0.0),
                solved=tuple(solved_at(cell, steps) for cell in cells),
                steps=steps * recipe.training.epochs,
                state=state_bytes(specs, view.cache_tokens or recipe.model.length),
                pairs=task.pairs,
                control=task.must_fail or beyond,
            )


def solved_at(cell: Cell, steps: int) -> int | None:
    """Return the steps after which the validation answers were solved; None = never."""
    solved = (e["epoch"] for e in cell.epochs if e["validation_accuracy"] >= SOLVED)
    first = next(solved, None)
    return None if first is None else first * steps


def _rolls(specs: Sequence[AttentionSpec]) -> bool:
    return all(sees_pairs(spec) for spec in specs) and receptive_field(specs) is None


def _trained(folder: Path, cell: Cell) -> LM:
    return model_folder.read(CellFiles.of(folder, *cell.key).model).model


def _accuracy(model: LM, dataset: Dataset, view: View, device: str) -> float:
    if view.cache_tokens is None:
        return evaluate(model, dataset, view.split, device=device).accuracy
    return _streamed(model, view.split, view.cache_tokens)


@torch.inference_mode()
def _streamed(model: LM, split: Split, cache_tokens: int) -> float:
    rows, labels = split.inputs.to(model.device), split.labels.to(model.device)
    predictions = model(rows, state=model.state(Rolling(cache_tokens))).argmax(dim=-1)
    answered = labels != IGNORE_INDEX
    return float((predictions == labels)[answered].double().mean())
