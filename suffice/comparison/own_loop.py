"""`suffice.compare`: the comparison of mechanisms in somebody else's model and training loop."""

from __future__ import annotations

import functools
import hashlib
import inspect
import multiprocessing
import os
import pickle
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from suffice.comparison.answers import Answers, from_scores, path_of, write_answers
from suffice.comparison.compare import OwnComparison, provenance
from suffice.comparison.jobs import Execution, trainer
from suffice.comparison.metrics import LOWER, Margin, own_metric
from suffice.comparison.plan import MARGIN, SavedPlan, check_several, run_folder
from suffice.comparison.results import (
    OWN_LOOP,
    Cell,
    Results,
    cell_path,
    find_cells,
    read_cell,
    with_rows,
    write_cell,
    write_results,
)
from suffice.comparison.training import state_bytes
from suffice.errors import ConfigError, check_known, unknown
from suffice.layers import Attention
from suffice.ops.flops import register_flops
from suffice.presets import PRESETS, preset, takes_length
from suffice.spec import AttentionSpec
from suffice.train.recipes import SCALES
from suffice.utils.grammar import parse_cells
from suffice.utils.machine import source_commit
from suffice.utils.progress import Progress
from suffice.utils.records import Axis, is_whole

ACCURACY, LOSS, PERPLEXITY = "accuracy", "loss", "perplexity"
LOSSES = (LOSS, "log-loss", PERPLEXITY)  # metrics that are known to be better the lower they are
CELLS = "SUFFICE_CELLS"  # of the environment: the share I/N that a job of a cluster trains

Scores = float | Mapping[str, Any]
Make = Callable[..., "AttentionSpec | nn.Module"]
COUNTED = "torch's FLOP counter, one forward of the module for one sample"


class AttentionMaker:
    """Makes the attention layers, or the models, of one training; what `train` is called with.

    Args:
        mechanism: a name in `suffice.presets.PRESETS`, or a function that returns an
            `AttentionSpec` or any module. It is called with what `train` gives.
        name: name of the mechanism in the comparison.
    """

    def __init__(self, mechanism: str | Make, name: str) -> None:
        self.mechanism, self.name = mechanism, name
        self.layers: list[nn.Module] = []
        self.num_heads = 1  # of the first layer, 1 where none are named
        self._lengths: dict[int, int] = {}
        self._counted: dict[int, int] = {}  # FLOPs of modules without a spec

    def __call__(self, *sizes: Any, length: int | None = None, **options: Any) -> Any:
        """Return a new attention layer, [B, T, d_model] to [B, T, d_model], or a model.

        Args:
            *sizes: d_model, features of a token, and num_heads, query heads; for functions that
                make something else whatever they take.
            length: longest input, tokens; for mechanisms that fix it. Without it the cost is that
                of the first input.
            **options: options of the mechanism, such as causal=True, bias=False, dropout=0.1.
        """
        layer = self._layer(sizes, length, dict(options))
        if not self.layers:
            heads = options.get("num_heads", sizes[1] if len(sizes) > 1 else 1)
            heads = layer.spec.num_heads if isinstance(layer, Attention) else heads
            self.num_heads = heads if is_whole(heads, least=1) else 1
        if not isinstance(layer, Attention):
            self._count_first_forward(layer)
        elif length is not None:
            self._lengths[id(layer)] = length
        else:
            layer.register_forward_pre_hook(self._note_length)
        self.layers.append(layer)
        return layer

    def _layer(
        self, sizes: tuple[Any, ...], length: int | None, options: dict[str, Any]
    ) -> nn.Module:
        if isinstance(self.mechanism, str):
            legal = inspect.signature(PRESETS[self.mechanism]).parameters
            if length is not None and takes_length(self.mechanism):
                options["length"] = length
            if "layer" in legal:
                options["layer"] = len(self.layers)
            made: Any = preset(self.mechanism, *sizes, **options)
        else:
            if length is not None and "length" in inspect.signature(self.mechanism).parameters:
                options["length"] = length
            made = self.mechanism(*sizes, **options)
        layer = Attention(made) if isinstance(made, AttentionSpec) else made
        if isinstance(layer, Attention) and layer.spec.shares is not None:
            raise ConfigError(
                f"mechanism {self.name!r}: layer {len(self.layers)} reads the keys and values of "
                f"layer {layer.spec.shares}, which your model would have to pass on; compare it "
                "with `suffice compare`, or leave it out."
            )
        if not isinstance(layer, nn.Module):
            raise ConfigError(
                f"mechanism {self.name!r} made a {type(made).__name__}; return an AttentionSpec or "
                "an nn.Module."
            )
        return layer

    def _count_first_forward(self, module: nn.Module) -> None:
        from torch.utils.flop_counter import FlopCounterMode  # loads triton where there is one

        running: list[FlopCounterMode] = []

        def begin(module: nn.Module, *_: Any) -> None:
            if id(module) in self._counted or running or torch.compiler.is_compiling():
                return
            register_flops()
            running.append(FlopCounterMode(display=False))
            running[0].__enter__()

        def end(module: nn.Module, args: tuple[Any, ...], options: Any, _: Any) -> None:
            if not running:
                return
            counter = running.pop()
            counter.__exit__(None, None, None)
            inputs = [x for x in (*args, *options.values()) if isinstance(x, Tensor) and x.dim()]
            samples = inputs[0].shape[0] if inputs else 1
            self._counted[id(module)] = counter.get_total_flops() // max(samples, 1)

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end, with_kwargs=True, always_call=True)

    def _note_length(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if id(layer) not in self._lengths and inputs and isinstance(inputs[0], Tensor):
            self._lengths[id(layer)] = inputs[0].shape[1]

    @property
    def flops(self) -> int:
        """FLOPs of the layers or models for one sample; those never called count nothing."""
        called = [layer for layer in self.layers if id(layer) in self._lengths]
        of_specs = sum(layer.spec.cost(self._lengths[id(layer)]).flops for layer in called)
        return of_specs + sum(self._counted.get(id(layer), 0) for layer in self.layers)

    @property
    def state_bytes(self) -> int | None:
        """Bytes that the layers keep of one text; None unless all have a causal spec."""
        lengths = [self._lengths.get(id(layer)) for layer in self.layers]
        if None in lengths:
            return None
        return state_bytes([layer.spec for layer in self.layers], lengths)

    @property
    def flops_source(self) -> dict[str, str]:
        """How FLOPs that no spec tells were counted, as a cell's signatures."""
        return {"flops": COUNTED} if self._counted else {}


def compare(
    train: Callable[[AttentionMaker, int], Scores],
    mechanisms: Sequence[str] | Mapping[str, str | Make] = (),
    *,
    seeds: int = 5,
    metric: str = ACCURACY,
    better: str | None = None,
    relative: bool | None = None,
    baseline: str | None = None,
    margin: float | str = MARGIN,
    chance: float | None = None,
    out: Path | str | None = None,
    title: str | None = None,
    cells: str | None = None,
    jobs: int | None = None,
    threads: int | None = None,
    engine: str = "local",
    address: str | None = None,
    quiet: bool = False,
) -> OwnComparison | None:
    """Train mechanisms side by side in your own loop and say which cheaper one suffices.

    `train(attention, seed)` builds a model, with `attention(d_model, num_heads, **options)` in
    place of its attention layers, trains it and returns what it scores on the test data. Before
    every call the generators of Python, NumPy and torch are seeded by the seed alone, so
    mechanisms are compared seed by seed. Each finished training is written at once: run the script
    again, and it goes on where it was stopped.

    Args:
        train: your function. It returns a number, the metric on the test data, or a dictionary of
            numbers by name, the metric among them. In place of a number, the metric and "loss" may
            be one for each test row, in the same order whatever the seed: their mean counts, and
            the rows are kept.
        mechanisms: names such as "standard" and "efficient", see `suffice list`; or a dictionary
            from your own names to such names, or to functions of (d_model, num_heads, **options)
            that return an `AttentionSpec` or any module. The functions are called with what
            `train` gives `attention`, so they may take other things and make whole models.
        seeds: trainings of each mechanism, 0 .. seeds - 1.
        metric: the score that the verdict is about. A fraction from 0 to 1 of which more is better,
            unless `better` says otherwise; "loss" and "perplexity" are better the lower they are.
        better: "lower" or "higher" for a metric that is any number, such as an error.
        relative: whether the margin is a fraction of such a metric, which is above 0 then, and not
            in its own unit; so by default for "perplexity" alone.
        baseline: name of the mechanism that all others are compared with; None: the first.
        margin: loss of the metric that still suffices: a fraction, an amount of a metric that is
            any number, or a string with a unit, see `suffice.verdict`.
        chance: score of a model that learned nothing, such as the share of the largest class.
        out: folder of the results; runs/NAME for a function of that name by default.
        title: one line for the report; the first line of the function's docstring by default.
        cells: "3/16" trains the third of sixteen shares and returns None, for jobs of a cluster
            that share `out`; the environment variable SUFFICE_CELLS says the same to a script as
            it is. A last call without it reads all cells and reports.
        jobs: trainings at a time; 1 by default, and all that fit into a cluster. For processes of
            this machine the script calls `compare` below `if __name__ == "__main__":`, and the
            functions have names in a file.
        threads: threads of each training; those of this machine divided by `jobs` by default, on a
            cluster 1.
        engine: "local", or "ray" for a cluster, which takes any function. A connection that the
            script made by `ray.init` is used.
        address: address of the cluster, HOST:PORT; "auto" for this machine's (default), "local" for
            a new one.
        quiet: whether to show no progress.

    Raises:
        ConfigError: for an unknown mechanism, a folder of another comparison, or scores that are
            not numbers.

    Example:
        >>> import tempfile
        >>> def train(attention, seed):
        ...     layer = attention(8, 2)
        ...     layer(torch.zeros(1, 4, 8))
        ...     return 0.75 + seed / 100  # a model of yours, trained and tested
        >>> with tempfile.TemporaryDirectory() as out:
        ...     done = compare(train, ["standard", "efficient"], seeds=3, out=out, quiet=True)
        >>> done.verdict.outcome, done.verdict.winner.mechanism
        ('suffices', 'efficient')
    """
    name, named = _name_of(train), _named(mechanisms)
    baseline = baseline or next(iter(named))
    check_known("baseline", baseline, named)
    better = better or (LOWER if metric in LOSSES else None)
    relative = metric == PERPLEXITY if relative is None else relative
    if better is not None:
        own_metric(metric, better)
    elif relative:
        raise ConfigError(
            f"relative=True with metric={metric!r}: a share has its margin in points; give "
            'better="higher" or better="lower" for a metric that is any number.'
        )
    kind = "share" if better is None else "ratio" if relative else "value"
    margin, in_percent = Margin.of(margin).for_metric(metric, kind)
    relative = relative or in_percent
    share = cells or os.environ.get(CELLS)
    options = {"jobs": jobs, "threads": threads, "engine": engine, "address": address}
    execution = Execution.of(**options, quiet=quiet)
    recipe = {
        "name": name,
        "task": OWN_LOOP,
        "title": title or (inspect.getdoc(_code_of(train)) or name).partition("\n")[0],
        "scale": SCALES[0],
        "metric": metric,
        "source": _digest(train),
        "made_by": {name: _maker_of(make) for name, make in named.items()},
        "commit": _commit_of(_code_of(train)),
    }
    plan = SavedPlan(
        recipe=recipe,
        mechanisms=tuple(named),
        heads=(),
        seeds=seeds,
        baseline=baseline,
        margin=margin,
        metric=metric,
        better=better,
        relative=relative,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    folder = Path(out) if out is not None else Path("runs") / name
    keys = [(mechanism, seed) for seed in range(seeds) for mechanism in named]
    if share is not None:
        number, of = parse_cells(share, "cells=")
        keys = keys[number - 1 :: of]
    jobs = [OwnJob(train, named[key[0]], plan, key) for key in keys]
    if execution is not None:
        _check_sendable(jobs, engine)
    started, clock = datetime.now(UTC), time.monotonic()
    with nullcontext() if share else run_folder(folder).locked():
        _claim(plan, folder)
        there = _read(folder, keys)
        if missing := [job for job in jobs if job.key not in there]:
            shown = {"quiet": quiet, "cells": len(keys), "done": len(there)}
            with trainer(folder, execution, console=Console(stderr=True), **shown) as run:
                run(missing, lambda job, tell: tell(job.line(_read(folder, [job.key])[job.key])))
        if share is not None:
            return None
        results = Results.of(
            plan,
            _read(folder, keys).values(),
            chance=chance,
            command=f"suffice.compare({name}, ...)",
            **provenance(execution, started, clock),
        )
        write_results(folder / "results.json", results)
    return OwnComparison.of(with_rows(results, folder), folder)


def _code_of(train: Any) -> Any:
    while isinstance(train, functools.partial):
        train = train.func
    return train if hasattr(train, "__name__") else type(train)


def _name_of(train: Any) -> str:
    if not callable(train):
        raise ConfigError(
            f"suffice.compare takes your training function, train(attention, seed), and got a "
            f"{type(train).__name__}; for texts and classes use suffice.compare_data."
        )
    return _code_of(train).__name__


def _named(mechanisms: Iterable[str] | Mapping[str, str | Make]) -> dict[str, str | Make]:
    if isinstance(mechanisms, str) or not isinstance(mechanisms, Iterable):
        raise ConfigError(f"mechanisms={mechanisms!r:.80}; give a list of names, or a dictionary.")
    named = (
        dict(mechanisms) if isinstance(mechanisms, Mapping) else {name: name for name in mechanisms}
    )
    check_several(named)
    for name, mechanism in named.items():
        if isinstance(mechanism, str) and mechanism not in PRESETS:
            raise unknown("mechanism", mechanism, PRESETS)
        if not isinstance(mechanism, str) and not callable(mechanism):
            raise ConfigError(
                f"mechanism {name!r} is a {type(mechanism).__name__}; give the name of one, or a "
                "function that makes a layer, such as lambda d_model, num_heads, **options: ..."
            )
    return named


def _claim(plan: SavedPlan, folder: Path) -> None:
    """Write plan.json; refuse a folder whose cells other functions or mechanisms trained."""
    run, settings = run_folder(folder), asdict(plan)
    made_by = settings["recipe"]["made_by"]

    def check() -> None:
        saved = run.read()
        was = {**saved.get("recipe", {}), **{n: saved.get(n) for n in ("better", "relative")}}
        now = {**settings, **plan.recipe}
        for name in ("name", "metric", "source", "better", "relative"):
            if (was.get(name) or None) != (now[name] or None):
                raise ConfigError(
                    f"{folder} holds trainings of another function or metric ({name} differs); "
                    "give another folder with out=, or delete it."
                )
        for name, before in was.get("made_by", {}).items():
            now = made_by.setdefault(name, before)
            # a bare digest is of an older folder, and of more code than a digest of today
            comparable = PRESETS.keys() & {before, now} or " " in (before or "")
            if now != before and comparable:
                raise ConfigError(
                    f"{folder} holds trainings of another {name!r}: its code has changed since; "
                    "give another folder with out=, or delete it."
                )

    run.claim(settings, resume=True, check=check)


def _read(folder: Path, keys: list[tuple[str, int]]) -> dict[tuple[str, int], Cell]:
    heads = {(name, seed): heads for name, heads, seed in find_cells(folder)}
    cells = ((key, read_cell(folder, key[0], heads[key], key[1])) for key in keys if key in heads)
    return {key: cell for key, cell in cells if cell is not None}


def _check_sendable(jobs: Sequence[OwnJob], engine: str) -> None:
    """Refuse functions that no other process can be given."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker of suffice.compare runs the script again and begins a comparison; put "
            'the call below `if __name__ == "__main__":`.'
        )
    if engine != "local":
        return
    try:
        pickle.dumps(jobs)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"another process cannot be given {_name_of(jobs[0].train)} and its mechanisms "
            f'({error}); define them in a file with def, or give engine="ray", address="local".'
        ) from error


@dataclass(frozen=True)
class OwnJob:
    """One training of a comparison in somebody's loop."""

    train: Callable[[AttentionMaker, int], Scores]
    make: str | Make
    plan: SavedPlan
    key: tuple[str, int]  # mechanism and seed

    @property
    def name(self) -> str:
        """The cell, in words."""
        return f"{self.key[0]} seed {self.key[1]}"

    @property
    def device(self) -> str:
        """That of the machine which began the comparison."""
        return self.plan.device

    def data(self) -> None:
        """The function loads its data itself."""

    def checkpoint(self, folder: Path) -> None:
        """The function keeps its own."""

    def run(self, data: None, folder: Path, progress: Progress) -> None:  # noqa: ARG002
        """Call the function, and write the cell."""
        progress.cell(self.name)
        _warm_up()
        cell, answers = self._train()
        if answers is not None:
            write_answers(path_of(folder, cell_path(folder, *cell.key).stem), answers)
        write_cell(folder, cell)
        progress.step(1, 1)

    def line(self, cell: Cell) -> str:
        """Return the line about a finished training."""
        metric, share = self.plan.metric, self.plan.better is None
        score = f"{cell.test_accuracy:.2%}" if share else f"{cell.scores[metric]:.4g}"
        return f"{self.name}: {metric} {score}, {cell.seconds_per_epoch:.0f} s"

    def _train(self) -> tuple[Cell, Answers | None]:
        name, seed = self.key
        maker = AttentionMaker(self.make, name)
        for plant in (random.seed, np.random.seed, torch.manual_seed):
            plant(seed)
        with _sizes_of_trained() as sizes:
            clock = time.monotonic()
            returned = self.train(maker, seed)
            seconds = time.monotonic() - clock
        scores, answers = _numbers(returned, self.plan.metric)
        sizes |= {id(p): p.numel() for layer in maker.layers for p in layer.parameters()}
        if not maker.layers:
            raise ConfigError(
                f"{_name_of(self.train)} did not call its first argument, attention(d_model, "
                "num_heads), so all mechanisms would be the same; use it where the model has its "
                "attention."
            )
        self._check(scores[self.plan.metric])
        loss = scores.get(LOSS)
        if self.plan.better is None:
            accuracy = scores.pop(self.plan.metric)
            scores.pop(LOSS, None)
        else:
            accuracy = scores.pop(ACCURACY, None)
        cell = Cell(
            mechanism=name,
            num_heads=maker.num_heads,
            seed=seed,
            parameters_layer=sum(p.numel() for p in maker.layers[0].parameters()),
            parameters_model=sum(sizes.values()),
            flops=maker.flops,
            seconds_per_epoch=seconds,
            train_loss=scores.pop("train_loss", None),
            train_accuracy=scores.pop("train_accuracy", None),
            test_loss=loss,
            test_accuracy=accuracy,
            scores=scores,
            signatures=maker.flops_source,
            state_bytes=maker.state_bytes,
        )
        return cell, answers

    def _check(self, score: float) -> None:
        said = f"{_name_of(self.train)} returned {self.plan.metric} = {score:g}"
        if self.plan.better is None and not 0.0 <= score <= 1.0:
            raise ConfigError(
                f"{said}; give a fraction from 0 to 1, of which more is better, or say of any "
                'other number better="lower" or better="higher".'
            )
        if self.plan.relative and not score > 0.0:
            raise ConfigError(f"{said}; with relative=True it must be above 0.")


def _numbers(scores: Scores, metric: str) -> tuple[dict[str, float], Answers | None]:
    named = dict(scores) if isinstance(scores, Mapping) else {metric: scores}
    if metric not in named:
        raise ConfigError(
            f"the training returned {', '.join(named) or 'nothing'} and no {metric}; return that, "
            "or name another metric=."
        )
    try:
        told = {str(n): torch.as_tensor(v, dtype=torch.float64) for n, v in named.items()}
        rows = {
            name: told[name].numpy(force=True)
            for name in (metric, LOSS)
            if name in told and told[name].dim() == 1
        }
        answers = from_scores(rows[metric], rows.get(LOSS)) if metric in rows else None
        return {name: float(value.mean()) for name, value in told.items()}, answers
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the training returned scores that are not numbers: {error}.") from error


@contextmanager
def _sizes_of_trained() -> Iterator[dict[int, int]]:
    sizes: dict[int, int] = {}
    seen: WeakSet[torch.optim.Optimizer] = WeakSet()

    def note(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        if optimiser not in seen:
            seen.add(optimiser)
            sizes.update((id(p), p.numel()) for g in optimiser.param_groups for p in g["params"])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield sizes
    finally:
        handle.remove()


def _warm_up() -> None:
    """Pay what torch pays once in a process (threads, imports), so that no training is blamed."""
    layer = Attention(preset("standard", 8, 2))
    optimiser = torch.optim.AdamW(layer.parameters())
    layer(torch.zeros(1, 4, 8)).sum().backward()
    optimiser.step()


def _digest(train: Any, held: Sequence[Any] = (), source: str | None = None) -> str | None:
    """Return sixteen characters that identify a function's source and arguments, None without one.

    Addresses of objects do not count.
    """
    code, bound = _code_of(train), []
    while isinstance(train, functools.partial):
        bound[:0] = [*train.args, *sorted(train.keywords.items())]
        train = train.func
    if train is not code:  # an object that is called
        bound[:0] = sorted(vars(train).items())
    try:
        source = inspect.getsource(code) if source is None else source
    except (OSError, TypeError):
        return None
    text = "".join([source, *map(repr, [*bound, *held])])
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()[:16]


PLAIN = (bool, int, float, str, bytes, tuple, type(None), type, FunctionType, Axis, AttentionSpec)


def _maker_of(make: str | Make) -> str:
    """Return what a folder records of a mechanism: the preset's name, or a function's digest.

    Its own source counts, and the plain values and names that it closes over.
    """
    if isinstance(make, str):
        return make
    code = _code_of(make)
    held = [cell.cell_contents for cell in getattr(code, "__closure__", None) or ()]
    source = None
    if code.__name__ == "<lambda>":  # its source is the whole line, with its neighbours
        held += [code.__code__.co_code, code.__code__.co_names, *code.__code__.co_consts]
        source = ""
    digest = _digest(make, [value for value in held if isinstance(value, PLAIN)], source)
    return f"{code.__qualname__} {digest}"


def _commit_of(code: Any) -> str | None:
    try:
        file = Path(inspect.getsourcefile(code) or "")
    except TypeError:  # of an interactive session
        return None
    return source_commit(file.parent, file.name)
