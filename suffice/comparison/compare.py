"""The comparison: train every cell, time all mechanisms side by side, write the results."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from suffice.comparison import report
from suffice.comparison.answers import BAG, Key, path_of, read_answers, write_answers
from suffice.comparison.bag_of_words import bag_of_words
from suffice.comparison.console import (
    WIDTH,
    cell_line,
    data_summary,
    figure_to_beat,
    print_report,
    seeds_needed,
)
from suffice.comparison.disagreements import disagreements, write_disagreements
from suffice.comparison.jobs import CellJob, Execution, trainer
from suffice.comparison.plan import Plan, read_plan, run_folder
from suffice.comparison.report.page import notebook_html
from suffice.comparison.resolution import FIRST_SEEDS
from suffice.comparison.results import (
    Cell,
    DataFacts,
    Results,
    Speed,
    cell_path,
    find_cells,
    read_cell,
    read_facts,
    with_rows,
    write_facts,
    write_results,
)
from suffice.comparison.sufficiency import FIRST, UNDECIDED
from suffice.comparison.training import CellFiles, check_scores
from suffice.comparison.tuning import tune
from suffice.comparison.verdict import Verdict, hopeless, judge
from suffice.comparison.winner import write_winner
from suffice.data import Dataset, load
from suffice.data.survey import survey
from suffice.errors import ConfigError
from suffice.train import current, resolve_device
from suffice.train.loop import Batches
from suffice.train.recipes.own_data import TABLE
from suffice.train.scoring import ModelInputs, cross_entropy, flatten_answers
from suffice.utils.files import GLANCE, read_record, write_json
from suffice.utils.machine import machine_facts, software_versions, source_commit
from suffice.utils.timing import Call, interleave, peak_bytes

ROUNDS = 15
WARM_UP = 3  # calls
SAMPLE_SECONDS = 0.02
EXECUTION = "execution.json"  # how the cells of a folder are trained, where it was measured
START = 5.0  # seconds until a process has imported torch and loaded the data
MAX_JOBS = 8  # each holds a copy of the data
MAX_NUMBERS = 1 << 14  # inputs of a batch that is timed
PATIENCE = 60.0  # seconds, in which every job of a cluster has written the same plan


def compare(
    plan: Plan,
    folder: Path,
    *,
    console: Console,
    resume: bool = False,
    quiet: bool = False,
    command: str = "compare()",
    share: tuple[int, int] | None = None,
    execution: Execution | None = None,
    measured: bool = False,
    anyway: bool = False,
) -> Results | None:
    """Run a plan and return the results, which are also written to the folder.

    Cells are trained seed by seed, all mechanisms of a seed one after the other, from the same
    random state and in the same order of the data. With `plan.auto` a mechanism gets no further
    seed once it is decided, or will hardly be. Each finished cell is written at once, so an
    interrupted comparison continues. Afterwards the forward passes of all mechanisms are timed in
    turn.

    Jobs that share a folder each train a share (i, n) of the cells, every n-th from the i-th on,
    and return None. A last call without a share reads their cells, trains what is missing, and
    returns the results.

    With an `execution` the cells are trained side by side, in processes of this machine or on a Ray
    cluster; with `plan.auto` all open mechanisms of a seed. `measured` leaves to a measurement
    whether they are; see `choose_execution`.

    The test rows of a table are first answered by a bag of words. A comparison whose
    baseline does not beat it with seed 0 stops then, unless `anyway`; resumed, it goes on.

    Raises:
        ConfigError: if the folder holds another comparison, settings exclude each other, or a bag
            of words is as good as the baseline.
    """
    refuse_together(plan, share=share, execution=execution)
    started, clock = datetime.now(UTC), time.monotonic()
    shown = None if quiet else console
    with nullcontext() if share else run_folder(folder).locked():
        if share is None:
            plan.claim(folder, resume=resume, command=command)
        dataset = _load(plan, shown)
        check_scores(dataset)
        inputs, length = dataset.train.inputs, plan.recipe.model.length
        if inputs.dim() == 2 and length != inputs.shape[1]:  # noqa: PLR2004
            raise ConfigError(
                f"length={length}: rows of {plan.recipe.task} have {inputs.shape[1]} tokens; leave "
                "length out."
            )
        facts = DataFacts.of(dataset, survey(dataset))
        write_facts(folder, facts)
        if not quiet:
            _print("\n".join(data_summary(facts.data, plan)), shown)
        figure = None
        if plan.recipe.task == TABLE and share is None:
            figure = _answer_by_words(plan, dataset, folder, shown)
        keys = plan.cells if share is None else plan.cells[share[0] - 1 :: share[1]]
        tuned = ()
        if plan.tune is not None:
            tuned = tune(plan, dataset, folder, console=console, quiet=quiet)
        rates = {(one.mechanism, one.num_heads): one.rate for one in tuned}
        if measured and share is None and plan.tune is None:
            waiting = sum(not cell_path(folder, *key).exists() for key in keys)
            tell = partial(_print, console=shown)
            execution = choose_execution(plan, dataset, folder, waiting, tell)
        alone = execution is None or execution.alone
        jobs = {key: CellJob(plan, key, alone, rates.get(key[:2])) for key in keys}
        how = {"console": console, "quiet": quiet, "data": _by_fold(plan, dataset)}
        open_trainer = partial(trainer, folder, execution, **how)
        cells = _train_all(plan, jobs, folder, shown, None if anyway else figure, open_trainer)
        if share is not None:
            return None
        results = Results.of(
            plan,
            cells,
            **facts.fields(),
            tuned=tuned,
            dropped=tuple(sorted({key[0] for key in find_cells(folder)} - {*plan.mechanisms})),
            speeds=time_all(plan, dataset, shown),
            command="\n".join(read_plan(folder).commands),
            **provenance(execution, started, clock),
        )
        write_results(folder / "results.json", results)
        results = with_rows(results, folder)
        write_disagreements(folder, disagreements(results, dataset))
    return results


def provenance(execution: Execution | None, started: datetime, clock: float) -> dict[str, Any]:
    """Return the fields of `Results` on where and when trainings ran, `clock` monotonic."""
    return {
        "machine": machine_facts() | ({} if execution is None else execution.facts),
        "versions": software_versions(),
        "commit": source_commit(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 1),
    }


@dataclass(frozen=True, kw_only=True)
class OwnComparison:
    """A comparison that is judged; printing it prints the verdict.

    Args:
        results: every training.
        verdict: the mechanism that suffices, if any.
        folder: folder of the results.
        page: file of the report.
    """

    results: Results
    verdict: Verdict
    folder: Path
    page: Path

    @classmethod
    def of(cls, results: Results, folder: Path, *, cost: str = "flops") -> OwnComparison:
        """Judge a comparison, and write its report and which model it leaves to its folder."""
        verdict = judge(results, cost=cost)
        write_winner(folder, results, verdict)
        page = report.write_report(results, verdict, folder)
        return cls(results=results, verdict=verdict, folder=folder, page=page)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=WIDTH)
        print_report(self.results, self.verdict, console, folder=self.folder)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return notebook_html(self.results, self.verdict)


def refuse_together(
    plan: Plan, *, share: tuple[int, int] | None, execution: Execution | None
) -> None:
    """Refuse settings that exclude each other; see `compare`."""
    resolve_device(plan.device)  # which may be absent, before anything is written
    if share is not None and plan.auto:
        raise ConfigError(
            "--cells with --seeds auto: which seeds are needed is known only after the others; "
            "give a number of seeds."
        )
    if plan.tune is not None and (share is not None or execution is not None):
        option = "--cells" if share is not None else "--jobs, --threads or --engine"
        raise ConfigError(
            f"{option} with --tune: no cell can be trained before all rates are chosen; leave "
            "one of them out."
        )


def claim(
    plan: Plan, folder: Path, *, resume: bool, command: str | None = None, shared: bool = False
) -> None:
    """Write the plan to a folder as `compare` does, without training anything.

    Jobs that share a folder wait for each other's writing.
    """
    with run_folder(folder).locked(patience=PATIENCE if shared else GLANCE):
        plan.claim(folder, resume=resume, command=command)


def _load(plan: Plan, console: Console | None, seed: int = 0) -> Dataset:
    return load(plan.recipe.task, console=console, **plan.data_options(seed))


def _answer_by_words(plan: Plan, dataset: Dataset, folder: Path, console: Console | None) -> float:
    """Keep a bag of words' answers to each fold; return its accuracy on the first."""
    figures = list[float]()
    for seed in range(min(plan.folds or 1, plan.seeds)):
        path = path_of(folder, cell_path(folder, BAG, 0, seed).stem)
        if not path.exists():
            write_answers(path, bag_of_words(dataset if seed == 0 else _load(plan, None, seed)))
        figures.append(float(read_answers(path).right.mean()))
    _print(figure_to_beat(plan, sum(figures) / len(figures), len(dataset.train)), console)
    return figures[0]


def _refuse_behind(plan: Plan, cells: Mapping[Key, Cell], beat: float) -> None:
    trained = [cells.get((plan.baseline, heads, 0)) for heads in plan.heads]
    best = max((cell.test_accuracy for cell in trained if cell is not None), default=1.0)
    if None in trained or best > beat:
        return
    raise ConfigError(
        f"with seed 0 {plan.baseline} has {best:.1%} of the test rows right, a bag of words "
        f"{beat:.1%}; start from another pretrained encoder (--start), change the training "
        "(--set), go on with --resume, or begin again with --anyway."
    )


def _by_fold(plan: Plan, dataset: Dataset) -> Callable[[CellJob], Dataset]:
    """Return what gives the data of a cell, and keeps those of the last fold."""
    loaded = {0: dataset}

    def data(job: CellJob) -> Dataset:
        seed = 0 if plan.folds is None else job.key[2]
        if seed not in loaded:
            loaded.clear()
            loaded[seed] = _load(plan, None, seed)
        return loaded[seed]

    return data


def _train_all(
    plan: Plan,
    jobs: Mapping[Key, CellJob],
    folder: Path,
    console: Console | None,
    beat: float | None,
    open_trainer: Callable[..., Any],
) -> list[Cell]:
    cells = {key: cell for key in jobs if (cell := read_cell(folder, *key)) is not None}
    for key in cells:
        CellFiles.of(folder, *key).discard_checkpoint()
    if len(cells) == len(jobs):  # a cluster may be gone by now
        return list(cells.values())
    first_seeds = {(*pair, seed) for pair in plan.pairs for seed in range(FIRST_SEEDS)}

    def finish(job: CellJob, tell: Callable[[str], None]) -> None:
        cell = read_cell(folder, *job.key)
        if cell is None:  # another program deleted it
            return
        cells[cell.key] = cell
        tell(cell_line(cell))
        if beat is not None and cell.seed == 0 and cell.mechanism == plan.baseline:
            _refuse_behind(plan, cells, beat)
        if console is not None and cell.key in first_seeds and first_seeds <= cells.keys():
            results = partial_results(plan, folder, list(cells.values()))
            _print(seeds_needed(results, plan), console)

    with open_trainer(cells=len(jobs), done=len(cells)) as train:
        # seeds between which a verdict is looked at are trained one after the other
        for seed, keys in groupby(jobs, lambda key: plan.auto and max(key[2], FIRST - 1)):
            closed: set[tuple[str, int]] = set()
            if plan.auto and seed >= FIRST:
                finished_cells = [cell for cell in cells.values() if cell.seed < seed]
                closed = _decided(plan, folder, finished_cells)
            train([jobs[k] for k in keys if k not in cells and k[:2] not in closed], finish)
    return [cells[key] for key in jobs if key in cells]


def choose_execution(
    plan: Plan, dataset: Dataset, folder: Path, cells: int, tell: Callable[[str], None]
) -> Execution | None:
    """Return how cells are trained side by side; None for one after the other in this process.

    A training step of the baseline is timed with all threads and with a share of them. `cells` are
    not trained yet; what a comparison began with stays in its folder, for when it is resumed.
    """
    threads, training = torch.get_num_threads(), plan.recipe.training
    together = len(plan.pairs) if plan.auto else cells  # cells that may be trained at a time
    jobs = min(threads, together, MAX_JOBS)
    if (folder / EXECUTION).exists():
        chosen = read_record(Execution, folder / EXECUTION, advice="Delete it to choose again.")
    elif jobs < 2 or plan.device != "cpu" or cells < len(plan.cells):
        return None  # what an earlier call trained had all threads
    else:
        shared, whole = _step_seconds(plan, dataset, threads // jobs, threads)
        steps = cells * training.epochs * -(-len(dataset.train) // training.batch_size)
        parallel = START + steps * shared * -(-together // jobs) / together
        chosen = Execution(jobs=jobs, threads=threads // jobs)
        if parallel >= steps * whole:
            chosen = Execution(jobs=1, threads=threads)
        tell(
            f"trainings in parallel: {chosen.jobs}, on {_threads(chosen.threads)} each; a step "
            f"takes {1e3 * shared:.1f} ms on {_threads(threads // jobs)}, {1e3 * whole:.1f} ms on "
            f"{_threads(threads)} (--jobs sets another number)"
        )
        write_json(folder / EXECUTION, {"jobs": chosen.jobs, "threads": chosen.threads})
    return None if chosen.jobs == 1 else chosen


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _step_seconds(plan: Plan, dataset: Dataset, *threads: int) -> list[float]:
    before, options = torch.get_num_threads(), {"processes": current(), "seed": 0}
    with torch.random.fork_rng(devices=[]):
        model = plan.recipe.build(plan.baseline, plan.heads[0])
        batches = Batches(dataset, plan.recipe.training, device=torch.device("cpu"), **options)
        inputs, labels = next(batches.epoch(1)).data
        rows = min(len(labels), MAX_NUMBERS // inputs.inputs[0].numel() or 1)
        inputs, answers = inputs.map(lambda tensor: tensor[:rows]), labels[:rows]

        def step(count: int) -> None:
            torch.set_num_threads(count)
            logits, flat = flatten_answers(inputs.logits(model), answers)
            cross_entropy(logits, flat, reduction="mean").backward()

        calls: dict[str, Call] = {str(count): partial(step, count) for count in threads}
        try:
            times = interleave(calls, rounds=3, warmup=1, min_seconds_per_sample=0.03)
        finally:
            torch.set_num_threads(before)
    return [min(times[str(count)]) * len(labels) / rows for count in threads]


def _decided(plan: Plan, folder: Path, cells: list[Cell]) -> set[tuple[str, int]]:
    verdict = judge(partial_results(plan, folder, cells))
    closed = {
        (c.mechanism, c.num_heads)
        for c in verdict.comparisons
        if c.sufficiency != UNDECIDED or hopeless(c, plan.margin, plan.seeds)
    }
    for heads in plan.heads:
        others = {pair for pair in plan.pairs if pair[1] == heads and pair[0] != plan.baseline}
        if others <= closed:
            closed.add((plan.baseline, heads))
    return closed


def partial_results(plan: Plan, folder: Path, cells: list[Cell]) -> Results:
    """Return what is known while cells are still being trained."""
    return with_rows(Results.of(plan, cells, **read_facts(folder)), folder)


def _print(line: str | None, console: Console | None) -> None:
    if line is not None and console is not None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def time_all(plan: Plan, dataset: Dataset, console: Console | None = None) -> tuple[Speed, ...]:
    """Time one forward of every (mechanism, heads) in turn, and take its peak memory.

    The models are fresh: the cost of a forward does not depend on the weights.
    """
    _print("timing the forward passes side by side", console)
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
