"""The comparison: train every cell, time all mechanisms side by side, write the results."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console

from suffice.data import Dataset, load
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.plan import Plan, run_folder
from suffice.measure.processes import first, losing, together
from suffice.measure.results import Cell, Results, Speed, cell_path, read_cell, write_results
from suffice.measure.timing import interleave, peak_bytes
from suffice.measure.training import check_scores, train_cell
from suffice.train import Processes, processes, resolve_device, show
from suffice.train.evaluate import ModelInputs

ROUNDS = 15
WARM_UP = 3  # calls
SAMPLE_SECONDS = 0.02


def compare(
    plan: Plan,
    folder: Path,
    *,
    console: Console,
    resume: bool = False,
    quiet: bool = False,
    command: str = "compare()",
) -> Results:
    """Run a plan and return the results, which are also written to the folder.

    Cells are trained seed by seed, all mechanisms of a seed one after the other, from the same
    random state and in the same order of the data. Each finished cell is written at once, so an
    interrupted comparison continues. Afterwards the forward passes of
    all mechanisms are timed in turn. Under torchrun the processes share every batch; the first
    one writes and times; the others return no speeds.

    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    progress_console = None if quiet else console
    with processes(plan.device) as group, losing(group), ExitStack() as stack:
        first(group, lambda: stack.enter_context(run_folder(folder).locked()))
        first(group, lambda: plan.claim(folder, resume=resume))
        dataset = _load(plan, group, progress_console)
        check_scores(dataset)
        cells = _train_all(plan, dataset, folder, group, console, quiet)
        speeds = first(group, lambda: time_all(plan, dataset, progress_console)) or ()
        results = Results(
            task=plan.recipe.task,
            recipe=plan.recipe.name,
            title=plan.recipe.title,
            margin=plan.margin,
            baseline=plan.baseline,
            answers=int(dataset.test.answers.sum()) / len(dataset.test),
            chance=dataset.chance,
            scale=plan.recipe.scale,
            cells=tuple(cells),
            speeds=speeds,
            machine=machine_facts(),
            versions=software_versions(),
            commit=source_commit(),
            command=command,
            started=started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - clock, 1),
        )
        first(group, lambda: write_results(folder / "results.json", results))
    return results


def claim(plan: Plan, folder: Path, *, resume: bool) -> None:
    """Write the plan to a folder as `compare` does, without training anything."""
    with run_folder(folder).locked():
        plan.claim(folder, resume=resume)


def _load(plan: Plan, group: Processes, console: Console | None) -> Dataset:
    """Load the data, on the first process first: it may have to download them."""
    task, options = plan.recipe.task, dict(plan.recipe.task_options)
    loaded = first(group, lambda: load(task, console=console, **options))
    return together(group, lambda: loaded if loaded is not None else load(task, **options))


def _train_all(
    plan: Plan,
    dataset: Dataset,
    folder: Path,
    group: Processes,
    console: Console,
    quiet: bool,
) -> list[Cell]:
    """Train every cell that is not on disk yet; return all in the plan's order."""
    exists = [group.is_main and cell_path(folder, *key).exists() for key in plan.cells]
    exists = group.broadcast(torch.tensor(exists)).tolist()
    finished = [key for key, is_there in zip(plan.cells, exists, strict=True) if is_there]
    cells = together(group, lambda: {key: read_cell(folder, *key) for key in finished})
    with show(console, cells=len(plan.cells), done=len(cells), quiet=quiet) as progress:
        for key in plan.cells:
            if key not in cells:
                cells[key] = train_cell(plan, key, dataset, folder, group, progress)
    return [cells[key] for key in plan.cells]


def time_all(plan: Plan, dataset: Dataset, console: Console | None = None) -> tuple[Speed, ...]:
    """Time one forward of every (mechanism, heads) in turn, and take its peak memory.

    The models are fresh: the cost of a forward does not depend on the weights.
    """
    if console is not None:
        line = "timing the forward passes side by side"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    torch_device = resolve_device(plan.device)
    size = min(plan.recipe.training.batch_size, len(dataset.test))
    batch = dataset.test.take(torch.arange(size))
    inputs = ModelInputs.of(batch).map(lambda tensor: tensor.to(torch_device))
    inputs = inputs._replace(inputs=dataset.prepare(inputs.inputs))
    models = {pair: plan.recipe.build(*pair).eval().to(torch_device) for pair in plan.pairs}
    with torch.inference_mode():
        calls = {
            f"{mechanism} {heads}": lambda model=model: inputs.logits(model)
            for (mechanism, heads), model in models.items()
        }
        times = interleave(
            calls,
            rounds=ROUNDS,
            warmup=WARM_UP,
            min_seconds_per_sample=SAMPLE_SECONDS,
            device=str(torch_device),
        )
        return tuple(
            Speed(
                mechanism=mechanism,
                num_heads=heads,
                latency=times[f"{mechanism} {heads}"],
                batch_size=size,
                peak_bytes=peak_bytes(calls[f"{mechanism} {heads}"], device=str(torch_device)),
            )
            for mechanism, heads in models
        )
