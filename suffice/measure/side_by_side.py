"""Chooses by measurement whether cells are trained side by side or one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from suffice.data import Dataset
from suffice.measure.jobs import Execution
from suffice.measure.plan import Plan
from suffice.train import current
from suffice.train.evaluate import cross_entropy, flatten_answers
from suffice.train.loop import Batches
from suffice.utils.files import read_record, write_json

FILE = "execution.json"  # of a comparison's folder
SECONDS = 1.5  # that are measured
SLOW = 0.2  # seconds of a step, above which it is measured with fewer rows
START = 5.0  # seconds until a process has imported torch and loaded the data
MAX_JOBS = 8  # each holds a copy of the data


@dataclass(frozen=True)
class Choice:
    """Cells that are trained at a time, and the threads of each."""

    jobs: int
    threads: int


def choose(
    plan: Plan, dataset: Dataset, folder: Path, cells: int, tell: Callable[[str], None]
) -> Execution | None:
    """Return how cells are trained side by side; None for one after the other in this process.

    A training step of the baseline is timed with all threads and with a share of them. What a
    comparison began with is read from its folder, so that resuming it changes no result.

    Args:
        plan: the comparison.
        dataset: its data.
        folder: its folder.
        cells: number of cells that are not trained yet.
        tell: function that shows the choice and its reason.
    """
    if (folder / FILE).exists():
        choice = read_record(Choice, folder / FILE, advice="Delete it to choose again.")
        return None if choice.jobs == 1 else Execution(jobs=choice.jobs, threads=choice.threads)
    threads, training = torch.get_num_threads(), plan.recipe.training
    together = len(plan.pairs) if plan.auto else cells  # cells that may be trained at a time
    jobs = min(threads, together, MAX_JOBS)
    if jobs < 2 or plan.device != "cpu" or cells < len(plan.cells):
        return None  # what an earlier call trained had all threads
    steps = cells * training.epochs * -(-len(dataset.train) // training.batch_size)
    shared, whole = _step_seconds(plan, dataset, (threads // jobs, threads), START / steps)
    if steps * whole <= START:
        return None
    rounds = -(-together // jobs) / together
    wins = START + rounds * steps * shared < steps * whole
    choice = Choice(jobs, threads // jobs) if wins else Choice(1, threads)
    tell(
        f"cells at a time: {choice.jobs}, threads of each: {choice.threads}; a step takes "
        f"{1e3 * shared:.1f} ms with {threads // jobs}, {1e3 * whole:.1f} with {threads} "
        "(--jobs sets another number)"
    )
    write_json(folder / FILE, asdict(choice))
    return Execution(jobs=choice.jobs, threads=choice.threads) if wins else None


def _step_seconds(
    plan: Plan, dataset: Dataset, threads: tuple[int, int], short: float
) -> list[float]:
    """Return the least seconds of a forward and backward of the baseline with numbers of threads.

    Where a batch takes long, fewer of its rows are timed. A `short` one is timed once.
    """
    training, before = plan.recipe.training, torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        model = plan.recipe.build(plan.baseline, plan.heads[0])
        options = {"seed": 0, "processes": current(), "device": torch.device("cpu")}
        inputs, labels = next(Batches(dataset, training, **options).epoch(1)).data

        def seconds(rows: int, count: int) -> float:
            torch.set_num_threads(count)
            start = time.perf_counter()
            logits = inputs.map(lambda tensor: tensor[:rows]).logits(model)
            cross_entropy(*flatten_answers(logits, labels[:rows]), reduction="mean").backward()
            return (time.perf_counter() - start) * len(labels) / rows

        try:
            end, rows = time.perf_counter() + SECONDS, len(labels)
            seconds(1, before)  # warm-up
            while rows > 1 and seconds(rows, before) * rows > SLOW * len(labels):
                rows = rows // 4 or 1
            samples = [[seconds(rows, count) for count in threads]]
            while time.perf_counter() < end and samples[0][1] > short:
                samples.append([seconds(rows, count) for count in threads])
        finally:
            torch.set_num_threads(before)
    return [min(column) for column in zip(*samples, strict=True)]
