"""The trainings of the atlas: learning rates first, then seed by seed what is not decided."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from suffice.comparison.answers import Key
from suffice.comparison.jobs import Execution
from suffice.comparison.plan import Plan
from suffice.comparison.results import Results, Tuned, read_facts, with_rows
from suffice.comparison.sufficiency import FIRST
from suffice.comparison.tuning import trial_keys, trial_path, tried
from suffice_papers.atlas.grid import STAIRS, atlas_table, climbs, label
from suffice_papers.atlas.standings import standings_of
from suffice_papers.folder import TrialJob, run_cells, run_jobs
from suffice_papers.request import TableRequest, request_cells
from suffice_papers.results import in_folder
from suffice_papers.tables import BASELINE

RATES = (1e-3, 3e-3, 1e-2)
TUNING_SEEDS = 1
SHARE = 2  # a trial on real data trains for half of the epochs


def with_rates(request: TableRequest) -> TableRequest:
    """Return the request of a table with its learning rates, and the cells trained at them."""
    tuned = _rates(request)
    before = request.published
    if not tuned or (before is not None and before.results.tuned == tuned):
        return replace(request, tuned=tuned)
    finished = tuple(in_folder(request.folder, request.plan))
    return replace(request, tuned=tuned, published=None, finished=finished)


def _rates(request: TableRequest) -> tuple[Tuned, ...]:
    source = request_cells(atlas_table(request.table.tuned_on))
    plan = _short(source)
    chosen = tried(plan, _folder(request, source), RATES, TUNING_SEEDS)
    if not chosen and source.published is not None:
        chosen = source.published.results.tuned
    by_row = {label(one.mechanism): one for one in chosen}
    return tuple(
        replace(by_row[label(mechanism)], mechanism=mechanism)
        for mechanism in request.table.mechanisms
        if label(mechanism) in by_row
    )


def _folder(request: TableRequest, source: TableRequest) -> Path:
    return request.folder.with_name(f"{source.table.store}-rates")


def _short(source: TableRequest) -> Plan:
    """Return the plan of the trials; recall is found late or never, so it is not cut short."""
    training = source.recipe.training
    if training.enough is None:
        training = replace(training, epochs=training.epochs // SHARE)
    return replace(source.plan, recipe=replace(source.recipe, training=training), seeds=1)


def train(
    request: TableRequest, options: Execution, *, console: Console, command: str
) -> TableRequest:
    """Train what is missing of a table of the atlas until the minutes are over.

    The rates come first. Then all open rows are trained from one seed, and from the next; last,
    Standard alone from further seeds. An interrupted training continues with the next call.
    """
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    if not request.tuned:
        source = request_cells(atlas_table(request.table.tuned_on))
        plan, folder = _short(source), _folder(request, source)
        keys = trial_keys(plan, RATES, TUNING_SEEDS)
        jobs = [TrialJob(plan, key) for key in keys if not trial_path(folder, *key).exists()]
        run_jobs(plan, jobs, folder, options, console=console, command=command)
        request = with_rates(request)
    rates = {(one.mechanism, one.num_heads): one.rate for one in request.tuned}
    while rates and (keys := following(request)):
        left = None if end is None else (end - time.monotonic()) / 60
        if left is not None and left <= 0:
            break
        run_cells(
            request.plan,
            keys,
            request.folder,
            replace(options, minutes=left),
            console=console,
            command=command,
            rates=rates,
        )
        request = request.again()
    return request


def following(request: TableRequest) -> list[Key]:
    """Return the cells to train next: those of the first seed that an open row lacks.

    Before the first look no row is closed; Standard goes on while any other row is open, and alone
    afterwards, from all its further seeds at once.
    """
    missing = request.missing
    for seed in sorted({seed for _, _, seed in missing if seed < request.seeds}):
        names = _open(request, seed)
        if chosen := [key for key in missing if key[2] == seed and key[0] in names]:
            return chosen
    return [key for key in missing if key[2] >= request.seeds]


def _open(request: TableRequest, seed: int) -> set[str]:
    names = [name for name in request.table.mechanisms if _climbs(request, name)]
    if seed >= FIRST:
        cells = [cell for cell in request.finished if cell.seed < seed]
        facts = read_facts(request.folder)
        results = with_rows(Results.of(request.plan, cells, **facts), request.folder)
        still = {row.mechanism for row in standings_of(results) if row.is_open}
        names = [name for name in names if label(name) in still]
    return {BASELINE, *names} if set(names) - {BASELINE} else set()


def _climbs(request: TableRequest, mechanism: str) -> bool:
    below = STAIRS.get(request.table.name)
    if below is None or mechanism == BASELINE:
        return True
    lower = with_rates(request_cells(atlas_table(below), out=request.folder.with_name(below)))
    cells = [c for c in lower.finished if label(c.mechanism) == label(mechanism)]
    return climbs(cells)
