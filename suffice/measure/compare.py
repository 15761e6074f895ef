"""The comparison: train every cell, measure all side by side, write what was found."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console

from suffice.data import Dataset, load
from suffice.errors import DataError
from suffice.layers import Attention
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.memory import peak_bytes
from suffice.measure.plan import Plan, describe
from suffice.measure.results import Cell, Results, Speed
from suffice.measure.storage import cell_path, read_cell, write_cell, write_results
from suffice.measure.timing import interleave
from suffice.train import (
    Processes,
    Progress,
    evaluate,
    fit,
    processes,
    resolve_device,
    save_model,
    show,
)

ROUNDS = 15
SAMPLE_SECONDS = 0.02


def compare(
    plan: Plan, folder: Path, *, console: Console, resume: bool = False, quiet: bool = False
) -> Results:
    """Run a plan and return what it found; the folder holds it too.

    Cells are trained seed by seed, all mechanisms of a seed one after the other, from the same
    start of the random numbers and in the same order of the data. Each finished cell is written
    at once, so an interrupted comparison goes on where it was. Afterwards the forward passes of
    all mechanisms are timed in turn. Under torchrun the processes share every batch and the first
    one writes.

    Args:
        plan: what to do.
        folder: where cells, models and results are written.
        console: where progress is shown.
        resume: go on with what the folder holds.
        quiet: show no progress.

    Raises:
        ConfigError: if the device is absent or the folder holds another comparison.
        DataError: if the data cannot be had or a file not be read or written.
        CheckpointError: if the state of a training cannot be read or written.
        Interrupted: on Ctrl-C; what was done is kept.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    resolve_device(plan.device)
    with processes(plan.device) as group:
        if group.is_main:
            plan.claim(folder, resume=resume)
        group.barrier()
        dataset = _load(plan, group, None if quiet else console)
        cells = _train_all(plan, dataset, folder, group, console, quiet)
        speeds = _time_all(plan, dataset) if group.is_main else ()
        group.barrier()
    results = Results(
        task=plan.recipe.task,
        recipe=plan.recipe.name,
        title=plan.recipe.title,
        margin=plan.margin,
        baseline=plan.baseline,
        cells=tuple(cells),
        speeds=speeds,
        machine=machine_facts(),
        versions=software_versions(),
        commit=source_commit(),
        command=" ".join(["suffice", *sys.argv[1:]]),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 1),
    )
    if group.is_main:
        write_results(folder / "results.json", results)
    return results


def _load(plan: Plan, group: Processes, console: Console | None) -> Dataset:
    """Load the data, on the first process first: it may have to download them."""
    options = dict(plan.recipe.task_options)
    if not group.is_main:
        group.barrier()
        return load(plan.recipe.task, **options)
    try:
        return load(plan.recipe.task, console=console, **options)
    finally:
        group.barrier()


def _train_all(
    plan: Plan,
    dataset: Dataset,
    folder: Path,
    group: Processes,
    console: Console,
    quiet: bool,
) -> list[Cell]:
    """Train every cell that is not on disk yet; return all in the plan's order."""
    there = [group.is_main and cell_path(folder, *key).exists() for key in plan.cells]
    there = group.broadcast(torch.tensor(there)).tolist()
    found = {k: read_cell(folder, *k) for k, t in zip(plan.cells, there, strict=True) if t}
    with show(console, cells=len(plan.cells), done=len(found), quiet=quiet) as progress:
        for key in plan.cells:
            if key not in found:
                found[key] = _train(_Cell(plan, *key), dataset, folder, group, progress)
    return [found[key] for key in plan.cells]


@dataclass(frozen=True)
class _Cell:
    """One model to train."""

    plan: Plan
    mechanism: str
    num_heads: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.mechanism} heads {self.num_heads} seed {self.seed}"

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return where the state of the training and the trained model lie."""
        stem = cell_path(folder, self.mechanism, self.num_heads, self.seed).stem
        return (
            folder / "checkpoints" / f"{stem}.safetensors",
            folder / "models" / f"{stem}.safetensors",
        )


def _train(
    cell: _Cell, dataset: Dataset, folder: Path, group: Processes, progress: Progress
) -> Cell:
    """Train one cell, score it, and write its record and its model."""
    plan, recipe = cell.plan, cell.plan.recipe
    checkpoint, trained = cell.files(folder)
    _make_folders(checkpoint.parent, trained.parent)
    progress.cell(cell.name)
    torch.manual_seed(cell.seed)
    model = recipe.build(cell.mechanism, cell.num_heads)
    run = fit(
        model,
        dataset,
        recipe.training,
        seed=cell.seed,
        device=plan.device,
        checkpoint=checkpoint,
        resume=checkpoint.exists(),
        progress=progress,
    )
    train = evaluate(model, dataset, dataset.train, device=plan.device)
    test = evaluate(model, dataset, dataset.test, device=plan.device)
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    length = recipe.model.length
    record = Cell(
        mechanism=cell.mechanism,
        num_heads=cell.num_heads,
        seed=cell.seed,
        parameters_layer=sum(p.numel() for p in layers[0].parameters()),
        parameters_model=sum(p.numel() for p in model.parameters()),
        flops=sum(layer.spec.cost(length).flops for layer in layers),
        epochs=tuple(dataclasses.asdict(epoch) for epoch in run.epochs),
        best_epoch=run.best_epoch,
        stopped_early=run.stopped_early,
        seconds_per_epoch=_typical([epoch.seconds for epoch in run.epochs]),
        train_loss=train.loss,
        train_accuracy=train.accuracy,
        train_top5=train.top5,
        test_loss=test.loss,
        test_accuracy=test.accuracy,
        test_top5=test.top5,
    )
    if group.is_main:
        spec = recipe.spec(cell.mechanism, cell.num_heads)
        save_model(trained, model, {"recipe": describe(recipe), "spec": spec.to_json()})
        write_cell(folder, record)
        checkpoint.unlink(missing_ok=True)
    group.barrier()
    return record


def _typical(seconds: list[float]) -> float:
    """Return the median time of an epoch; the first one warms up and does not count."""
    return statistics.median(seconds[1:] or seconds)


def _make_folders(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"cannot make {folder} ({error.strerror}); choose a folder that can be written "
                "with --out."
            ) from error


def _time_all(plan: Plan, dataset: Dataset) -> tuple[Speed, ...]:
    """Time one forward of every (mechanism, heads) in turn, and take its peak memory."""
    size = min(plan.recipe.training.batch_size, len(dataset.test))
    batch = dataset.test.take(torch.arange(size))
    inputs = dataset.prepare(batch.inputs).to(plan.device)
    valid = None if batch.valid is None else batch.valid.to(plan.device)
    models = {
        pair: plan.recipe.build(*pair).eval().to(resolve_device(plan.device)) for pair in plan.pairs
    }
    with torch.inference_mode():
        calls = {
            f"{mechanism} {heads}": lambda model=model: model(inputs, valid=valid)
            for (mechanism, heads), model in models.items()
        }
        times = interleave(
            calls,
            rounds=ROUNDS,
            warmup=3,
            min_seconds_per_sample=SAMPLE_SECONDS,
            device=plan.device,
        )
        return tuple(
            Speed(
                mechanism=mechanism,
                num_heads=heads,
                latency=times[f"{mechanism} {heads}"],
                batch_size=size,
                peak_bytes=peak_bytes(calls[f"{mechanism} {heads}"], device=plan.device),
            )
            for mechanism, heads in models
        )
