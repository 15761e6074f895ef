"""The working folder of a table: claimed for a plan, with what its cells were trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from suffice.comparison.answers import Key
from suffice.comparison.jobs import CellJob, Execution, J, dataset_of, pool
from suffice.comparison.plan import (
    RAN,
    Plan,
    check_data,
    data_digest,
    read_plan,
    read_provenance,
    run_folder,
    same_training,
)
from suffice.comparison.results import DataFacts, write_facts
from suffice.comparison.tuning import TrialKey, train_trial, trial_checkpoint, trial_name
from suffice.data import Dataset, load
from suffice.data.survey import survey
from suffice.errors import ConfigError
from suffice.train import Progress
from suffice.utils.files import write_json
from suffice.utils.machine import machine_facts, software_versions, source_commit
from suffice.utils.records import encode


def claim(folder: Path, plan: Plan, *, command: str, started: str, threads: int) -> None:
    """Make a folder this plan's working folder, or find that it fits the one there."""
    if not run_folder(folder).exists():
        plan.claim(folder, resume=False)
    refuse_another(folder, plan)
    ran = read_provenance(folder)
    if ran is not None and ran.threads != threads:
        raise ConfigError(
            f"the cells in {folder} were trained with {ran.threads} threads each, not {threads}; "
            f"give --threads {ran.threads}, or another folder with --out."
        )
    if ran is None:
        content = {
            "machine": {**machine_facts(), "threads": threads},
            "versions": software_versions(),
            "commit": source_commit(),
            "command": command,
            "started": started,
            "threads": threads,
            "data": data_digest(plan.recipe),
        }
        write_json(folder / RAN, content)
    elif (cpu := machine_facts()["cpu"]) not in ran.machine["cpu"].split(", "):
        machine = {**ran.machine, "cpu": f"{ran.machine['cpu']}, {cpu}"}
        write_json(folder / RAN, encode(asdict(ran) | {"machine": machine}))


def refuse_another(folder: Path, plan: Plan) -> None:
    """Refuse a folder whose cells have other settings."""
    saved = read_plan(folder)
    if saved.device != plan.device or not same_training(saved.recipe, plan.recipe):
        raise ConfigError(
            f"{folder} holds cells of other settings ({saved.recipe.get('name')}, scale "
            f"{saved.recipe.get('scale')}, {saved.device}); name another folder with --out."
        )
    ran = read_provenance(folder)
    if ran is not None:
        check_data(folder, ran.data, plan.recipe)


@dataclass(frozen=True)
class TrialJob:
    """A training by which a learning rate is chosen, see `suffice.comparison.tuning`."""

    plan: Plan
    key: TrialKey

    @property
    def name(self) -> str:
        return trial_name(*self.key)

    @property
    def device(self) -> str:
        return self.plan.device

    def data(self) -> Dataset:
        return dataset_of(self.plan.recipe.task, tuple(self.plan.data_options(0).items()))

    def checkpoint(self, folder: Path) -> Path:
        return trial_checkpoint(folder, *self.key)

    def run(self, data: Dataset, folder: Path, progress: Progress) -> None:
        train_trial(self.plan, self.key, data, folder, progress)


def run_cells(
    plan: Plan,
    keys: Sequence[Key],
    folder: Path,
    options: Execution,
    *,
    console: Console,
    command: str,
    rates: Mapping[tuple[str, int], float] | None = None,
) -> list[Key]:
    """Train cells and return the keys of those that were finished.

    `rates` are learning rates by mechanism and heads; others have the recipe's.
    """
    rates = rates or {}
    jobs = [CellJob(plan, key, options.alone, rates.get(key[:2])) for key in keys]
    done = run_jobs(plan, jobs, folder, options, console=console, command=command)
    return [job.key for job in done]


def run_jobs(
    plan: Plan,
    jobs: Sequence[J],
    folder: Path,
    options: Execution,
    *,
    console: Console,
    command: str,
) -> list[J]:
    """Run trainings of a plan in its working folder and return those that were finished."""
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with run_folder(folder).locked():
        claim(folder, plan, command=command, started=started, threads=options.threads)
        # download before several workers look for the data
        task, task_options = plan.recipe.task, dict(plan.recipe.task_options)
        dataset = load(task, console=None if options.quiet else console, **task_options)
        write_facts(folder, DataFacts.of(dataset, survey(dataset)))
        with pool(folder, options, console=console, cells=len(jobs)) as workers_:
            return workers_.train(jobs, deadline=deadline)
