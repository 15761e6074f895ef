"""One step of a recipe's training with real numbers, weighed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from suffice.measure.planning import Workload
from suffice.measure.timing import peak_bytes
from suffice.train import optimiser, sharded
from suffice.train.language.fit import gradient_checkpointing


@dataclass(frozen=True)
class Weighed:
    """Bytes of one process.

    Args:
        parameters: its weights.
        gradients: of them.
        optimiser: AdamW's state, as it is after a step.
        activations: of the distinct tensors that autograd saved, weights not counted.
        peak: what was allocated at once at most, beside what was there before the step.
    """

    parameters: int
    gradients: int
    optimiser: int
    activations: int
    peak: int


def weigh(work: Workload, model: nn.Module, rows: int, *, checkpointing: bool = False) -> Weighed:
    """Make two steps, the first so that everything exists that stays."""
    model.train()
    adamw = optimiser.build(model, work.rates)
    saved: dict[int, int] = {}
    weights = {sharded.local(p).untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step(hooks: bool = False) -> None:
        adamw.zero_grad(set_to_none=True)
        with gradient_checkpointing(model, checkpointing):
            if hooks:
                with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                    loss = work.loss(model, rows)
            else:
                loss = work.loss(model, rows)
            loss.backward()
        if work.clip is not None:
            nn.utils.clip_grad_norm_(list(model.parameters()), work.clip)
        adamw.step()

    step(hooks=True)
    gradients = size(p.grad for p in model.parameters())
    adamw.zero_grad(set_to_none=True)
    return Weighed(
        parameters=size(model.parameters()),
        gradients=gradients,
        optimiser=size(t for state in adamw.state.values() for t in state.values()),
        activations=sum(saved.values()),
        peak=peak_bytes(step),
    )


def size(tensors) -> int:
    return sum(sharded.local(t).nbytes for t in tensors)
