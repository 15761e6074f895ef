"""Training state and its resumable checkpoint file.

A resumed run is the same run because the file has the weights, the best weights, the moments of the
optimiser, the random state of dropout, the place in the run and the history. The order of the data
is a pure function of the seed and the place, so it needs none of it.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError
from suffice.models import checkpoint
from suffice.train import optimiser, sharded
from suffice.train.distributed import Processes
from suffice.utils.files import changed_settings
from suffice.utils.records import decode, type_hints

S = TypeVar("S", bound="TrainingState")


@dataclass(kw_only=True)
class TrainingState(ABC):
    """A training between two steps; `identity` stays, and a kind of training adds counters."""

    CONTENT: ClassVar[str]  # which kind of checkpoint this is
    RECORD: ClassVar[type]  # of the history
    RESUMED_FREELY: ClassVar[tuple[str, ...]] = ()  # settings that a resumed run may change

    identity: dict[str, Any]  # data, settings, seed and device, which a resumed run shares; JSON
    model: nn.Module  # without a wrapper
    optimiser: optimiser.Optimiser
    best: dict[str, Tensor]  # copies of the weights with the lowest validation loss so far
    totals: Tensor  # float64 [2], sums of loss and count since the last record, of this process
    history: list[Any] = field(default_factory=list)  # records, each with a validation_loss
    step: int = 0  # optimiser steps that are done
    seconds: float = 0.0  # training time so far
    cpu_seconds: float = 0.0  # processor time of it

    @classmethod
    def begin(
        cls: type[S], model: nn.Module, training: Any, *, data: Any, seed: int, device: torch.device
    ) -> S:
        """Return the state before the first step; `data` is JSON that identifies the data."""
        bare = checkpoint.bare(model)
        settings = {n: v for n, v in asdict(training).items() if n not in cls.RESUMED_FREELY}
        if settings["optimiser"] == optimiser.ADAMW:  # a checkpoint of AdamW does not name it
            del settings["optimiser"]
        return cls(
            identity={"seed": seed, "training": settings, "data": data, "device": device.type},
            model=bare,
            optimiser=optimiser.build(bare, training),
            best={name: t.detach().clone() for name, t in bare.state_dict().items()},
            totals=torch.zeros(2, dtype=torch.float64, device=device),
        )

    @classmethod
    def counters(cls) -> dict[str, type]:
        """Return the name and type of every field that is a plain number or truth value."""
        hints = type_hints(cls)
        return {f.name: hints[f.name] for f in fields(cls) if hints[f.name] in (int, float, bool)}

    @property
    def best_loss(self) -> float:
        """The lowest validation loss so far, infinity before the first."""
        return min((record.validation_loss for record in self.history), default=math.inf)

    def keep_best(self) -> None:
        for name, tensor in self.model.state_dict().items():
            self.best[name].copy_(tensor)

    def advance(self, targets: int) -> None:  # noqa: ARG002 - for kinds that count targets
        """Count a step that learned from `targets` targets."""
        self.step += 1

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state, random states included, by name."""
        named = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        named |= {f"best/{name}": t for name, t in self.best.items()}
        named |= optimiser.state_tensors(self.optimiser, self.model)
        return named | {"totals": self.totals} | random_states(self.totals.device)

    def finite(self) -> bool:
        """Return whether this process's weights and sums are all finite."""
        tensors = (self.totals, *map(sharded.local, self.model.parameters()))
        return all(bool(torch.isfinite(t).all()) for t in tensors)

    @classmethod
    @abstractmethod
    def consistent(cls, history: Sequence[Any], counters: Mapping[str, Any]) -> bool:
        """Return whether the records and the counters of a file fit together."""


def write(path: Path, state: TrainingState, processes: Processes | None = None) -> None:
    """Write a state; all processes call it, and sharded tensors go to a folder next to it."""
    processes = processes or Processes()
    tensors = state.tensors()
    cut = {name: tensor for name, tensor in tensors.items() if sharded.is_cut(tensor)}
    folder = {sharded.FACT: sharded.write(path, cut, processes)} if cut else {}
    if not processes.is_main:
        return
    counters = {name: getattr(state, name) for name in state.counters()}
    history = [asdict(record) for record in state.history]
    facts = {"content": state.CONTENT, "identity": state.identity, **counters, "history": history}
    rest = {name: tensor for name, tensor in tensors.items() if name not in cut}
    checkpoint.save(path, rest, {**facts, **folder})
    sharded.remove_others(path, folder.get(sharded.FACT))


def read(path: Path, state: TrainingState, processes: Processes | None = None) -> None:
    """Load a file into a state that was just built for the same run."""
    processes = processes or Processes()
    facts, expected = checkpoint.metadata(path), state.tensors()
    history, counters = _checked(path, facts, state)
    cut = sharded.read(path, facts, expected)
    rest = {name: tensor for name, tensor in expected.items() if name not in cut}
    stored = checkpoint.load(path, rest)[0] | cut
    tensors = {name: sharded.cut_like(tensor, expected[name]) for name, tensor in stored.items()}
    try:
        set_random_states(tensors, state.totals.device)
    except RuntimeError as error:
        raise CheckpointError(f"{path} holds a random state torch refuses ({error}).") from error
    state.model.load_state_dict(_under("model/", tensors))
    for name, tensor in _under("best/", tensors).items():
        state.best[name].copy_(tensor)
    optimiser.load_state(state.optimiser, state.model, tensors)
    state.totals.copy_(tensors["totals"])
    if not processes.is_main:
        state.totals.zero_()  # the file holds the sums of all processes
    state.history = history
    for name, value in counters.items():
        setattr(state, name, value)


def _checked(
    path: Path, facts: Mapping[str, Any], state: TrainingState
) -> tuple[list[Any], dict[str, Any]]:
    if facts.get("content") != state.CONTENT:
        raise CheckpointError(f"{path} is not a training checkpoint; give one that `fit` wrote.")
    identity = json.loads(json.dumps(state.identity))
    if unlike := changed_settings(facts.get("identity"), identity):
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(unlike)}. Give the settings it was made with, "
            "or another file."
        )
    types = {"history": tuple[state.RECORD, ...], **state.counters()}  # type: ignore[name-defined]
    values = {
        name: decode(type_, value, where=f"{path}: {name}", error=CheckpointError)
        for name, type_ in types.items()
        for value in (facts.get(name, 0.0 if name == "cpu_seconds" else None),)  # older files
    }
    history = list(values.pop("history"))
    if not state.consistent(history, values):
        raise CheckpointError(f"{path} has counters that contradict its history; start again.")
    return history, values


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


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
