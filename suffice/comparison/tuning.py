"""The learning rate of each mechanism, chosen on seeds and rows that the verdict does not see."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from suffice.comparison.plan import Plan
from suffice.comparison.results import Tuned, cell_path
from suffice.comparison.training import at_rate
from suffice.data import Dataset
from suffice.errors import StateError
from suffice.train import Progress, fit, show
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


TrialKey = tuple[str, int, float, int]
"""Mechanism, heads, rate and seed."""


def trial_keys(plan: Plan, rates: Sequence[float], seeds: int = SEEDS) -> list[TrialKey]:
    """Return the trainings of a grid: all rates of a seed for each (mechanism, heads)."""
    tried = range(FIRST_SEED, FIRST_SEED + seeds)
    return [(*pair, rate, seed) for pair in plan.pairs for rate in rates for seed in tried]


@dataclass(frozen=True, kw_only=True)
class Trial:
    rate: float
    loss: float  # lowest of its epochs in validation; infinity: diverged
    seconds: float


def tune(
    plan: Plan, dataset: Dataset, folder: Path, *, console: Console, quiet: bool = False
) -> tuple[Tuned, ...]:
    """Return the learning rate of every (mechanism, heads), chosen by validation loss.

    All have the same grid and the same seeds, which no compared training uses; the test part is
    not read. Each finished training is written at once, so an interrupted choice continues.
    """
    rates = grid(plan.recipe.training.learning_rate, plan.tune)
    keys = trial_keys(plan, rates)
    is_there = [trial_path(folder, *key).exists() for key in keys]
    trials: dict[TrialKey, Trial] = {}
    with show(console, cells=len(keys), done=sum(is_there), quiet=quiet) as progress:
        for key, exists in zip(keys, is_there, strict=True):
            if exists:
                trials[key] = _read(folder, key)
                trial_checkpoint(folder, *key).unlink(missing_ok=True)
                continue
            trials[key] = train_trial(plan, key, dataset, folder, progress)
            progress.finish(f"{trial_name(*key)}: {_outcome(trials[key])}")
    tuned = _tuned(plan, trials)
    if not quiet:
        for one in tuned:
            console.print(f"learning rate of {one.mechanism} heads {one.num_heads}: {one.rate:g}")
    return tuned


def tried(plan: Plan, folder: Path, rates: Sequence[float], seeds: int) -> tuple[Tuned, ...]:
    """Return the rates that the finished trials of a folder choose; () while any is missing."""
    keys = trial_keys(plan, rates, seeds)
    if not all(trial_path(folder, *key).exists() for key in keys):
        return ()
    return _tuned(plan, {key: _read(folder, key) for key in keys})


def _tuned(plan: Plan, trials: Mapping[TrialKey, Trial]) -> tuple[Tuned, ...]:
    rates = tuple(dict.fromkeys(rate for _, _, rate, _ in trials))
    seeds = tuple(dict.fromkeys(seed for _, _, _, seed in trials))
    return tuple(
        _chosen(*pair, rates, [[trials[(*pair, rate, seed)] for seed in seeds] for rate in rates])
        for pair in plan.pairs
    )


def _chosen(
    mechanism: str, num_heads: int, rates: tuple[float, ...], trials: list[list[Trial]]
) -> Tuned:
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


def train_trial(
    plan: Plan, key: TrialKey, dataset: Dataset, folder: Path, progress: Progress
) -> Trial:
    """Train one model of the grid or resume it, and write what came of it."""
    mechanism, num_heads, rate, seed = key
    recipe, path = at_rate(plan.recipe, rate), trial_path(folder, *key)
    checkpoint = trial_checkpoint(folder, *key)
    path.parent.mkdir(parents=True, exist_ok=True)
    progress.cell(trial_name(*key))
    torch.manual_seed(seed)
    try:
        run = fit(
            recipe.build(mechanism, num_heads),
            dataset,
            recipe.training,
            seed=seed,
            device=plan.device,
            checkpoint=checkpoint,
            resume=checkpoint.exists(),
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
    write_json(path, encode(asdict(trial)))
    checkpoint.unlink(missing_ok=True)
    return trial


def _read(folder: Path, key: TrialKey) -> Trial:
    return read_record(Trial, trial_path(folder, *key), advice=RETRAIN)


def trial_checkpoint(folder: Path, *key: Any) -> Path:
    """Return the file in which a trial keeps its state until it is finished."""
    return trial_path(folder, *key).with_suffix(".safetensors")


def trial_path(folder: Path, mechanism: str, num_heads: int, rate: float, seed: int) -> Path:
    stem = cell_path(folder, mechanism, num_heads, seed).stem
    return folder / FOLDER / f"{stem}-lr{rate:g}.json"


def trial_name(mechanism: str, num_heads: int, rate: float, seed: int) -> str:
    return f"tuning {mechanism} heads {num_heads} learning rate {rate:g} seed {seed}"


def _outcome(trial: Trial) -> str:
    if trial.loss == math.inf:
        return "diverged"
    return f"validation loss {trial.loss:.3f}, {trial.seconds:.0f} s"
