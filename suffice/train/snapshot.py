"""Everything a training is made of at one moment, and its file.

What a resumed run needs to be the same run: weights, best weights, AdamW's moments, the random
state behind dropout, the place in the epoch and the history. The order of the rows and the
augmentation are pure functions of seed and epoch, so they need no place in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suffice.data.dataset import Dataset
from suffice.errors import CheckpointError
from suffice.train import checkpoint, optimiser
from suffice.train.history import Epoch
from suffice.train.settings import Training

COUNTERS = {"epoch": int, "step": int, "best_epoch": int, "seconds": float, "stopped_early": bool}


@dataclass(kw_only=True)
class State:
    """A training at one moment; every field but `identity` changes as it goes on.

    Args:
        identity: what makes this run this run: data, settings, seed, device; JSON.
        model: the bare model.
        optimiser: AdamW over its parameters.
        best: copies of the weights with the lowest validation loss so far.
        totals: float64 [2], summed loss and hits of the epoch so far, of this process.
        epoch: the epoch in progress, from 1; one past the last when all are done.
        step: optimiser steps of that epoch that are done.
        seconds: training time of that epoch so far.
        best_epoch: epoch whose weights `best` holds; 0 before the first.
        stopped_early: whether patience has ended the run.
        history: a record for each finished epoch.
    """

    identity: dict[str, Any]
    model: nn.Module
    optimiser: torch.optim.AdamW
    best: dict[str, Tensor]
    totals: Tensor
    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    best_epoch: int = 0
    stopped_early: bool = False
    history: list[Epoch] = field(default_factory=list)

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        for name, tensor in self.model.state_dict().items():
            self.best[name].copy_(tensor)
        self.best_epoch = self.epoch

    def next_epoch(self) -> None:
        """Stand at the beginning of the next epoch."""
        self.epoch += 1
        self.step, self.seconds = 0, 0.0
        self.totals.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state, random states included, by name."""
        named = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        named |= {f"best/{name}": t for name, t in self.best.items()}
        named |= optimiser.state_tensors(self.optimiser, self.model)
        return named | {"totals": self.totals} | random_states(self.totals.device)

    def finite(self) -> bool:
        """Return whether the weights and the sums of the epoch so far are all finite."""
        return all(bool(torch.isfinite(t).all()) for t in (self.totals, *self.model.parameters()))


def start(
    model: nn.Module,
    dataset: Dataset,
    training: Training,
    *,
    seed: int,
    device: torch.device,
) -> State:
    """Return the state of a training before its first step."""
    bare = checkpoint.bare(model)
    sizes = {"train": len(dataset.train), "validation": len(dataset.validation)}
    return State(
        identity={
            "seed": seed,
            "training": asdict(training),
            "data": {"name": dataset.name, **sizes},
            "device": device.type,
        },
        model=bare,
        optimiser=optimiser.build(bare, training),
        best={name: t.detach().clone() for name, t in bare.state_dict().items()},
        totals=torch.zeros(2, dtype=torch.float64, device=device),
    )


def write(path: Path, state: State) -> None:
    """Write a state to a file.

    Raises:
        CheckpointError: as `checkpoint.save`.
    """
    counters = {name: getattr(state, name) for name in COUNTERS}
    history = [asdict(epoch) for epoch in state.history]
    facts = {"content": "training", "identity": state.identity, **counters, "history": history}
    checkpoint.save(path, state.tensors(), facts)


def read(path: Path, state: State) -> None:
    """Put a file's state into one that was just built for the same run.

    Raises:
        CheckpointError: if the file cannot be read, is no training checkpoint, or is of another
            run; the state is as before, and every difference is told.
    """
    tensors, facts = checkpoint.load(path, state.tensors(), check=lambda f: _check(path, f, state))
    try:
        set_random_states(tensors, state.totals.device)
    except RuntimeError as error:
        raise CheckpointError(f"{path} holds a random state torch refuses ({error}).") from error
    state.model.load_state_dict(_under("model/", tensors))
    for name, tensor in _under("best/", tensors).items():
        state.best[name].copy_(tensor)
    optimiser.load_state(state.optimiser, state.model, tensors)
    state.totals.copy_(tensors["totals"])
    for name in COUNTERS:
        setattr(state, name, facts[name])
    state.history = [Epoch(**record) for record in facts["history"]]


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


def _check(path: Path, facts: Mapping[str, Any], state: State) -> None:
    if facts.get("content") != "training":
        raise CheckpointError(f"{path} is not a training checkpoint; give one that `fit` wrote.")
    own = json.loads(json.dumps(state.identity))
    if unlike := differences(facts.get("identity"), own):
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(unlike)}. Give the settings it was made with, "
            "or another file."
        )
    if not _sound(facts):
        raise CheckpointError(f"{path} has counters or a history that make no sense; start anew.")


def _sound(facts: Mapping[str, Any]) -> bool:
    if any(type(facts.get(name)) is not wanted for name, wanted in COUNTERS.items()):
        return False
    history = facts.get("history")
    if not isinstance(history, list) or not all(_is_record(record) for record in history):
        return False
    numbered = [record["epoch"] for record in history] == list(range(1, len(history) + 1))
    within = bool(history) <= facts["best_epoch"] <= len(history) and facts["step"] >= 0
    return numbered and within and facts["epoch"] == len(history) + 1


def _is_record(record: object) -> bool:
    if not isinstance(record, dict) or record.keys() != {f.name for f in fields(Epoch)}:
        return False
    return all(type(value) is (int if name == "epoch" else float) for name, value in record.items())


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
