"""What every kind of training is made of at one moment, and its file.

What a resumed run needs to be the same run: weights, best weights, AdamW's moments, the random
state behind dropout, the place in the run and the history. The order of the data is a pure
function of the seed and the place, so it needs none in the file.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from suffice import checkpoint
from suffice.data.dataset import Dataset
from suffice.errors import CheckpointError
from suffice.train import optimiser, sharded
from suffice.train import sharded as shards
from suffice.train.distributed import Processes
from suffice.train.progress import Epoch
from suffice.train.settings import Training

M = TypeVar("M", bound="Moment")

ALONE = Processes()


@dataclass(kw_only=True)
class Moment(ABC):
    """A training at one moment; every field but `identity` changes as it goes on.

    A kind of training adds its counters as fields, names them in COUNTERS, and says in `sound`
    which values of them belong together.

    Args:
        identity: what makes this run this run: data, settings, seed, device; JSON.
        model: the bare model.
        optimiser: AdamW over its parameters.
        best: copies of the weights with the lowest validation loss so far.
        totals: float64, sums since the last record, of this process.
        history: the records so far.
    """

    KIND: ClassVar[str]
    COUNTERS: ClassVar[dict[str, type]]
    RECORD: ClassVar[type]

    identity: dict[str, Any]
    model: nn.Module
    optimiser: torch.optim.AdamW
    best: dict[str, Tensor]
    totals: Tensor
    history: list[Any] = field(default_factory=list)

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        for name, tensor in self.model.state_dict().items():
            self.best[name].copy_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state, random states included, by name."""
        named = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        named |= {f"best/{name}": t for name, t in self.best.items()}
        named |= optimiser.state_tensors(self.optimiser, self.model)
        return named | {"totals": self.totals} | random_states(self.totals.device)

    def finite(self) -> bool:
        """Return whether the weights that this process holds and the sums are all finite."""
        tensors = (self.totals, *map(sharded.own, self.model.parameters()))
        return all(bool(torch.isfinite(t).all()) for t in tensors)

    @classmethod
    @abstractmethod
    def sound(cls, facts: Mapping[str, Any]) -> bool:
        """Return whether counters and history of the right types belong together."""


def parts(model: nn.Module, training: optimiser.Rates, device: torch.device) -> dict[str, Any]:
    """Return the model, its optimiser and its best weights before the first step, by field."""
    bare = checkpoint.bare(model)
    return {
        "model": bare,
        "optimiser": optimiser.build(bare, training),
        "best": {name: t.detach().clone() for name, t in bare.state_dict().items()},
        "totals": torch.zeros(2, dtype=torch.float64, device=device),
    }


def write(path: Path, state: Moment, processes: Processes = ALONE) -> None:
    """Write a state to a file; tensors cut between processes to a folder beside it.

    Args:
        path: the file.
        state: what to write.
        processes: that all call this, each with its part; the first writes the file.

    Raises:
        CheckpointError: as `checkpoint.save` and `shards.write`; what was there is kept.
    """
    tensors = state.tensors()
    cut = {name: tensor for name, tensor in tensors.items() if sharded.is_cut(tensor)}
    folder = {shards.FACT: shards.write(path, cut, processes)} if cut else {}
    if not processes.is_main:
        return
    counters = {name: getattr(state, name) for name in state.COUNTERS}
    history = [asdict(record) for record in state.history]
    facts = {"content": state.KIND, "identity": state.identity, **counters, "history": history}
    rest = {name: tensor for name, tensor in tensors.items() if name not in cut}
    checkpoint.save(path, rest, {**facts, **folder})
    shards.remove_others(path, folder.get(shards.FACT))


def read(path: Path, state: Moment) -> None:
    """Put a file's state into one that was just built for the same run.

    Raises:
        CheckpointError: if the file cannot be read, is no training checkpoint, or is of another
            run; the state is as before, and every difference is told.
    """
    facts, due = checkpoint.metadata(path), state.tensors()
    _check(path, facts, state)
    cut = shards.read(path, facts, due)
    rest = {name: tensor for name, tensor in due.items() if name not in cut}
    found = checkpoint.load(path, rest)[0] | cut
    tensors = {name: sharded.cut_like(tensor, due[name]) for name, tensor in found.items()}
    try:
        set_random_states(tensors, state.totals.device)
    except RuntimeError as error:
        raise CheckpointError(f"{path} holds a random state torch refuses ({error}).") from error
    state.model.load_state_dict(_under("model/", tensors))
    for name, tensor in _under("best/", tensors).items():
        state.best[name].copy_(tensor)
    optimiser.load_state(state.optimiser, state.model, tensors)
    state.totals.copy_(tensors["totals"])
    for name in state.COUNTERS:
        setattr(state, name, facts[name])
    state.history = [state.RECORD(**record) for record in facts["history"]]


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return torch's global random states that a training on `device` draws from, uint8."""
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what `random_states` returned."""
    torch.set_rng_state(states["random/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["random/cuda"], device)


def differences(found: Any, own: Any, name: str = "") -> list[str]:
    """Name each leaf in which two JSON values differ, with both values.

    Example:
        >>> differences({"seed": 1, "data": {"name": "a"}}, {"seed": 2, "data": {"name": "a"}})
        ['seed is 1 there and 2 here']
    """
    if isinstance(found, dict) and isinstance(own, dict):
        keys = [*own, *(key for key in found if key not in own)]
        inner = f"{name}." if name else ""
        pairs = [(found.get(key), own.get(key), f"{inner}{key}") for key in keys]
        return [line for pair in pairs for line in differences(*pair)]
    return [] if found == own else [f"{name or 'all'} is {found!r:.60} there and {own!r:.60} here"]


def _check(path: Path, facts: Mapping[str, Any], state: Moment) -> None:
    if facts.get("content") != state.KIND:
        raise CheckpointError(f"{path} is not a training checkpoint; give one that `fit` wrote.")
    own = json.loads(json.dumps(state.identity))
    if unlike := differences(facts.get("identity"), own):
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(unlike)}. Give the settings it was made with, "
            "or another file."
        )
    if not (_typed(facts, state) and state.sound(facts)):
        raise CheckpointError(f"{path} has counters or a history that make no sense; start anew.")


def _typed(facts: Mapping[str, Any], state: Moment) -> bool:
    if any(type(facts.get(name)) is not wanted for name, wanted in state.COUNTERS.items()):
        return False
    history = facts.get("history")
    return isinstance(history, list) and all(_is_record(one, state.RECORD) for one in history)


def _is_record(record: object, kind: type) -> bool:
    """Return whether this is a record as data; its fields are whole numbers or others."""
    due = {f.name: int if str(f.type) == "int" else float for f in fields(kind)}
    if not isinstance(record, dict) or record.keys() != due.keys():
        return False
    return all(type(value) is due[name] for name, value in record.items())


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@dataclass(kw_only=True)
class State(Moment):
    """A training at one moment; its sums are the loss and the hits of the epoch so far.

    Args:
        epoch: the epoch in progress, from 1; one past the last when all are done.
        step: optimiser steps of that epoch that are done.
        seconds: training time of that epoch so far.
        best_epoch: epoch whose weights `best` holds; 0 before the first.
        stopped_early: whether patience or what is enough has ended the run.
    """

    KIND: ClassVar[str] = "training"
    COUNTERS: ClassVar[dict[str, type]] = {
        "epoch": int,
        "step": int,
        "best_epoch": int,
        "seconds": float,
        "stopped_early": bool,
    }
    RECORD: ClassVar[type] = Epoch

    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    best_epoch: int = 0
    stopped_early: bool = False

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        super().keep_best()
        self.best_epoch = self.epoch

    def next_epoch(self) -> None:
        """Stand at the beginning of the next epoch."""
        self.epoch += 1
        self.step, self.seconds = 0, 0.0
        self.totals.zero_()

    @classmethod
    def sound(cls, facts: Mapping[str, Any]) -> bool:
        """Return whether a record stands for each epoch that is done, and the best is one."""
        history = facts["history"]
        numbered = [record["epoch"] for record in history] == list(range(1, len(history) + 1))
        within = bool(history) <= facts["best_epoch"] <= len(history) and facts["step"] >= 0
        return numbered and within and facts["epoch"] == len(history) + 1


def start(
    model: nn.Module,
    dataset: Dataset,
    training: Training,
    *,
    seed: int,
    device: torch.device,
) -> State:
    """Return the state of a training before its first step."""
    sizes = {"train": len(dataset.train), "validation": len(dataset.validation)}
    return State(
        identity={
            "seed": seed,
            "training": asdict(training),
            "data": {"name": dataset.name, **sizes},
            "device": device.type,
        },
        **parts(model, training, device),
    )


__all__ = ["State", "differences", "random_states", "read", "set_random_states", "start", "write"]
