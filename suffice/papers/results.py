"""The finished cells of a table: those that come with the package and those of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from suffice.data import Dataset
from suffice.data.survey import survey
from suffice.errors import ConfigError, DataError
from suffice.files import flatten, read_record, write_json
from suffice.measure.answers import PackedAnswers
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.plan import (
    CELLS,
    Plan,
    check_data,
    data_digest,
    describe,
    describe_for_others,
    read_plan,
    run_folder,
)
from suffice.measure.results import (
    Cell,
    DataFacts,
    Results,
    cell_path,
    read_cell,
    read_facts,
    read_results,
    with_rows,
)
from suffice.papers.tables import Table
from suffice.recipes import SCALES, Recipe
from suffice.records import encode

UNCOMPARED = ("title",)  # of a recipe: a new wording does not make it another training
FOLDERS = re.compile(r"(?<![^\s='\"])/(?:[^\s/]+/)*")  # of an absolute path
ADVICE = "Take the file of the release, or publish it anew with --publish."


@dataclass(frozen=True, kw_only=True)
class Published:
    """The finished cells of one table."""

    scale: str
    threads: int
    recipe: dict[str, Any]
    results: Results
    answers: PackedAnswers | None = None

    def with_rows(self) -> Published:
        """Return the same with the answers unpacked into `results.rows`."""
        unpack = (lambda _stem: None) if self.answers is None else self.answers.unpack
        rows = {cell.key: unpack(_stem(cell.key)) for cell in self.results.cells}
        rows = {key: answers for key, answers in rows.items() if answers is not None}
        return replace(self, results=replace(self.results, rows=rows))


def _stem(key: Key) -> str:
    return cell_path(Path(), *key).stem


def path_of(store: str) -> Path:
    """Return where the published results of a table lie, there or not."""
    return Path(str(resources.files("suffice").joinpath("results"))) / f"{store}.json"


def published(table: Table) -> Published | None:
    """Return the cells that were published for a table, None if none were."""
    name = published_name(table)
    return None if name is None else _read(path_of(name), path_of(name).stat().st_mtime_ns)


def published_name(table: Table) -> str | None:
    """Return the name that a table's results are published by, None if there are none."""
    names = map(table.published_as, SCALES if table.trained else ())
    return next((name for name in names if path_of(name).exists()), None)


@lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> Published:  # noqa: ARG001 - a changed file is read anew
    return read_record(Published, path, advice=ADVICE).with_rows()


def publish(table: Table, content: Published) -> Path:
    """Write the results that come with the package and return their file."""
    results = replace(content.results, command=portable(content.results.command))
    answers = PackedAnswers.of({_stem(key): one for key, one in results.rows.items()})
    return write_published(
        table.published_as(content.scale),
        {
            "scale": content.scale,
            "threads": content.threads,
            "recipe": content.recipe,
            "results": results.to_json(),
            "answers": None if answers is None else asdict(answers),
        },
    )


def portable(command: str) -> str:
    """Return a command without the folders of the machine it was given on.

    Example:
        >>> portable("suffice compare --recipe imdb --out /home/me/runs/imdb")
        'suffice compare --recipe imdb --out imdb'
    """
    return FOLDERS.sub("", command)


def write_published(store: str, content: dict[str, Any]) -> Path:
    """Write a file of the package's results."""
    path = path_of(store)
    if not (path.parents[2] / "pyproject.toml").exists():
        raise DataError(
            f"{path} belongs to an installed package; publish from a checkout of the source."
        )
    write_json(path, encode(content))
    return path


def same_training(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Return whether saved settings are those of a recipe, where both have them.

    The folder of a model holds the names of own files, a plan their paths.
    """
    return any(
        _same(saved, as_described(recipe)) for as_described in (describe, describe_for_others)
    )


def _same(saved: dict[str, Any], described: dict[str, Any]) -> bool:
    before, now = flatten(saved), flatten(described)
    shared = [key for key in before.keys() & now.keys() if key not in UNCOMPARED]
    return all(before[key] == now[key] for key in shared) and not (
        _deeper(before, now) or _deeper(now, before)
    )


def _deeper(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether what is a plain value in one is a group of settings in the other."""
    groups = {key.rpartition(".")[0] for key in other}
    return any(key in groups for key in one)


def cells_of(content: Published | None, recipe: Recipe) -> list[Cell]:
    """Return the published cells of a recipe at its scale; none if they are of another."""
    if content is None or content.scale != recipe.scale:
        return []
    return list(content.results.cells) if same_training(content.recipe, recipe) else []


Key = tuple[str, int, int]  # mechanism, heads, seed
RAN = "ran.json"
NAME = re.compile(r"(.+)-h(\d+)-s(\d+)\.json")


def cell_name(key: Key) -> str:
    """Name a cell in a message.

    Example:
        >>> cell_name(("efficient", 4, 0))
        'efficient heads 4 seed 0'
    """
    mechanism, heads, seed = key
    return f"{mechanism} heads {heads} seed {seed}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Machine, versions and settings behind the cells of a working folder."""

    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    command: str
    started: str
    threads: int
    data: str | None = None


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


def read_provenance(folder: Path) -> Provenance | None:
    """Read what a working folder ran on; None if nothing has run there, or by `suffice compare`."""
    path = folder / RAN
    return read_record(Provenance, path, advice="Delete it to go on.") if path.exists() else None


def in_folder(folder: Path, plan: Plan) -> list[Cell]:
    """Read every finished cell of a working folder; none if there is no such folder."""
    if not run_folder(folder).exists():
        return []
    refuse_another(folder, plan)
    keys = [key for path in sorted((folder / CELLS).glob("*.json")) if (key := _key(path))]
    cells = [read_cell(folder, *key) for key in keys if cell_path(folder, *key).exists()]
    return [cell for cell in cells if cell is not None]


def joined(first: Iterable[Cell], second: Iterable[Cell]) -> list[Cell]:
    """Return the cells of both, each once; where both have one, the first's is taken."""
    by_key = {cell.key: cell for cell in second} | {cell.key: cell for cell in first}
    return sorted(by_key.values(), key=lambda cell: (cell.num_heads, cell.seed, cell.mechanism))


def gather(
    plan: Plan,
    folder: Path,
    cells: list[Cell],
    published: Published | None,
    dataset: Dataset | None = None,
) -> Published:
    """Put finished cells together with what they ran on and answered, ready to be published.

    Args:
        plan: of the cells.
        folder: where they were trained, and keep their answers.
        cells: all finished ones.
        published: what is published so far; None = nothing.
        dataset: of the plan's task, for its floors; None = those that the folder or the published
            results tell.
    """
    facts = _facts(folder, published)
    if facts is None:
        raise ConfigError(f"nothing has run in {folder} yet; begin with --run.")
    recipe = plan.recipe
    results = Results(
        task=recipe.task,
        recipe=recipe.name,
        title=recipe.title,
        margin=plan.margin,
        baseline=plan.baseline,
        cells=tuple(cells),
        speeds=(),
        scale=recipe.scale,
        machine=facts.machine,
        versions=facts.versions,
        commit=facts.commit,
        command=facts.command,
        started=facts.started,
        seconds=round(sum(cell.cost_seconds for cell in cells), 1),
        **_data_facts(folder, published, dataset),
    )
    before = {} if published is None else published.results.rows
    kept = {cell.key: before[cell.key] for cell in cells if cell.key in before}
    results = with_rows(results, folder)
    return Published(
        scale=recipe.scale,
        threads=facts.machine.get("threads") or 1,
        recipe=describe(recipe),
        results=replace(results, rows={**kept, **results.rows}),
    )


def _data_facts(
    folder: Path, published: Published | None, dataset: Dataset | None
) -> dict[str, Any]:
    if dataset is not None:
        return DataFacts.of(dataset, survey(dataset)).fields()
    before = None if published is None else published.results
    known = {} if before is None else {n: getattr(before, n) for n in DataFacts.__annotations__}
    return read_facts(folder) or known


def machine_of(folder: Path, published: Published | None) -> dict[str, Any] | None:
    """Return what the cells of a folder, or the published ones, ran on; None if that is unknown."""
    facts = _facts(folder, published)
    return None if facts is None else facts.machine


def _facts(folder: Path, published: Published | None) -> Provenance | Results | None:
    """Find who trained: this program, `suffice compare`, or whoever published."""
    ran, compared = read_provenance(folder), folder / "results.json"
    if ran is not None:
        return ran
    if compared.exists():
        return read_results(compared)
    return None if published is None else published.results


def _key(path: Path) -> Key | None:
    """Read mechanism, heads and seed off the name of a cell's file; None if it is no such name."""
    match = NAME.fullmatch(path.name)
    return match and (unquote(match[1]), int(match[2]), int(match[3]))
