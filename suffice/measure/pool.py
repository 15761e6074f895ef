"""Workers that train the cells of a comparison: processes of this machine, or tasks of Ray."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from suffice.data import load
from suffice.data.survey import survey
from suffice.measure.answers import Key
from suffice.measure.cluster import RayTasks
from suffice.measure.jobs import CellJob, Engine, Execution, J, LocalProcesses, Pool, claim
from suffice.measure.plan import Plan, run_folder
from suffice.measure.results import DataFacts, write_facts
from suffice.utils.progress import workers


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
    alone = (options.jobs or 1) == 1 and options.engine == "local"
    rates = rates or {}
    jobs = [CellJob(plan, key, alone, rates.get(key[:2])) for key in keys]
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


@contextlib.contextmanager
def pool(folder: Path, options: Execution, *, console: Console, **shown: Any) -> Iterator[Pool]:
    """Yield workers that train for a folder, and say if one alone would have been faster."""
    make = RayTasks if options.engine == "ray" else LocalProcesses
    with workers(console, quiet=options.quiet, **shown) as display:
        engine: Engine = make(folder, options)
        cores = os.cpu_count() or 1
        if make is LocalProcesses and engine.jobs > 1 and engine.jobs * options.threads > cores:
            display.tell(
                f"{engine.jobs} cells x {options.threads} threads on {cores} processors wait for "
                f"each other; {max(1, cores // options.threads)} at a time are as fast"
            )
        alone = make is LocalProcesses and engine.jobs == 1
        try:
            yield (working := Pool(engine, display, alone))
        finally:
            engine.close()
    if engine.jobs > 1 and 0.0 < working.seconds < working.elapsed:
        display.tell(
            f"{engine.jobs} at a time took {working.elapsed:.0f} s after their start, and the "
            f"trainings themselves {working.seconds:.0f} s: one after the other is faster"
        )
