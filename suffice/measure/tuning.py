"""The learning rate of each mechanism, chosen on seeds and rows that the verdict does not see."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from suffice.data import Dataset
from suffice.errors import StateError
from suffice.measure.plan import Plan
from suffice.measure.processes import first, together
from suffice.measure.results import Tuned, cell_path
from suffice.recipes import Recipe
from suffice.train import Processes, Progress, fit, show
from suffice.utils.files import read_record, write_json
from suffice.utils.records import encode

FIRST_SEED = 1_000_000  # of tuning; the seeds of a comparison are below
SEEDS = 2  # that every rate is tried with
FOLDER = "tuning"
RETRAIN = "Delete this file; its model will be trained again."


def grid(rate: float, count: int) -> tuple[float, ...]:
    """Return learning rates around the recipe's, two for each power of ten.

    Example:
        >>> grid(1e-3, 5)
        (0.0001, 0.000316, 0.001, 0.00316, 0.01)
    """
    return tuple(
        float(f"{rate * 10 ** (at / 2):.3g}") for at in range(-(count // 2), count // 2 + 1)
    )


def at_rate(recipe: Recipe, rate: float | None) -> Recipe:
    """Return a recipe with another learning rate; None leaves it as it is."""
    if rate is None:
        return recipe
    return replace(recipe, training=replace(recipe.training, learning_rate=rate))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of the grid.

    Args:
        rate: the learning rate.
        loss: lowest validation loss of its epochs; infinity where the training diverged.
        seconds: seconds of training.
    """

    rate: float
    loss: float
    seconds: float


def tune(
    plan: Plan,
    dataset: Dataset,
    folder: Path,
    group: Processes,
    *,
    console: Console,
    quiet: bool = False,
) -> tuple[Tuned, ...]:
    """Return the learning rate of every (mechanism, heads), chosen by validation loss.

    All have the same grid and the same seeds, which no compared training uses; the test part is
    not read. Each finished training is written at once, so an interrupted choice continues.

    Raises:
        StateError: if the training diverges at every rate.
        Interrupted: on Ctrl-C.
    """
    if plan.tune is None:
        return ()
    rates = grid(plan.recipe.training.learning_rate, plan.tune)
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    keys = [(*pair, rate, seed) for pair in plan.pairs for rate in rates for seed in seeds]
    is_there = [group.is_main and _path(folder, *key).exists() for key in keys]
    is_there = group.broadcast(torch.tensor(is_there)).tolist()
    trials: dict[tuple[str, int, float, int], Trial] = {}
    with show(console, cells=len(keys), done=sum(is_there), quiet=quiet) as progress:
        for key, exists in zip(keys, is_there, strict=True):
            if exists:
                trials[key] = together(group, lambda key=key: _read(folder, *key))
                first(group, partial(_checkpoint(_path(folder, *key)).unlink, missing_ok=True))
                continue
            trials[key] = _train(plan, key, dataset, folder, group, progress)
            progress.finish(f"{_name(*key)}: {_outcome(trials[key])}")
    tuned = tuple(
        _chosen(*pair, rates, [[trials[(*pair, rate, seed)] for seed in seeds] for rate in rates])
        for pair in plan.pairs
    )
    if group.is_main and not quiet:
        for one in tuned:
            console.print(f"learning rate of {one.mechanism} heads {one.num_heads}: {one.rate:g}")
    return tuned


def _chosen(
    mechanism: str, num_heads: int, rates: tuple[float, ...], trials: list[list[Trial]]
) -> Tuned:
    """Return the rate of the lowest mean loss over the seeds, the smaller of equals."""
    losses = tuple(tuple(trial.loss for trial in of_rate) for of_rate in trials)
    means = [statistics.fmean(of_rate) for of_rate in losses]
    if min(means) == math.inf:
        raise StateError(
            f"{mechanism} with {num_heads} heads diverges at every learning rate from {rates[0]:g} "
            f"to {rates[-1]:g}; tune around a smaller one with --set learning_rate={rates[0]:g}."
        )
    return Tuned(
        mechanism=mechanism,
        num_heads=num_heads,
        rate=rates[means.index(min(means))],
        rates=rates,
        losses=losses,
        seconds=round(sum(trial.seconds for of_rate in trials for trial in of_rate), 1),
    )


def _train(
    plan: Plan,
    key: tuple[str, int, float, int],
    dataset: Dataset,
    folder: Path,
    group: Processes,
    progress: Progress,
) -> Trial:
    """Train one model of the grid or resume it, and write what came of it."""
    mechanism, num_heads, rate, seed = key
    recipe, path = at_rate(plan.recipe, rate), _path(folder, *key)
    checkpoint = _checkpoint(path)
    together(group, lambda: path.parent.mkdir(parents=True, exist_ok=True))
    progress.cell(_name(*key))
    torch.manual_seed(seed)
    try:
        run = fit(
            recipe.build(mechanism, num_heads),
            dataset,
            recipe.training,
            seed=seed,
            device=plan.device,
            checkpoint=checkpoint,
            resume=group.any(group.is_main and checkpoint.exists()),
            progress=progress,
        )
    except StateError:  # the loss is no longer finite
        trial = Trial(rate=rate, loss=math.inf, seconds=0.0)
    else:
        loss = min(epoch.validation_loss for epoch in run.epochs)
        seconds = sum(
            one.seconds if one.cpu_seconds is None else one.cpu_seconds for one in run.epochs
        )
        trial = Trial(rate=rate, loss=loss, seconds=seconds)

    def write() -> None:
        write_json(path, encode(asdict(trial)))
        checkpoint.unlink(missing_ok=True)

    first(group, write)
    return trial


def _read(folder: Path, mechanism: str, num_heads: int, rate: float, seed: int) -> Trial:
    path = _path(folder, mechanism, num_heads, rate, seed)
    return read_record(Trial, path, advice=RETRAIN)


def _checkpoint(path: Path) -> Path:
    """Return where a trial that is written to `path` keeps its state until it is finished."""
    return path.with_suffix(".safetensors")


def _path(folder: Path, mechanism: str, num_heads: int, rate: float, seed: int) -> Path:
    stem = cell_path(folder, mechanism, num_heads, seed).stem
    return folder / FOLDER / f"{stem}-lr{rate:g}.json"


def _name(mechanism: str, num_heads: int, rate: float, seed: int) -> str:
    return f"tuning {mechanism} heads {num_heads} learning rate {rate:g} seed {seed}"


def _outcome(trial: Trial) -> str:
    if trial.loss == math.inf:
        return "diverged"
    return f"validation loss {trial.loss:.3f}, {trial.seconds:.0f} s"
