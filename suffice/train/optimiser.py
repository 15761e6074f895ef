"""AdamW, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamWSettings(Protocol):
    """The settings of AdamW, which every kind of training has."""

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]


def build(model: nn.Module, training: AdamWSettings) -> torch.optim.AdamW:
    """Return a fused AdamW over the parameters that learn.

    Tensors with two or more dimensions (weights, embeddings, alignments) are decayed; vectors and
    scalars (biases, norms) are not.
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    if not learned:
        raise ConfigError("the model has no parameter that requires a gradient; unfreeze some.")
    matrices = [p for p in learned if p.dim() >= 2]
    vectors = [p for p in learned if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,  # on the CPU too, where it is several times faster than the loop
    )


def state_tensors(optimiser: torch.optim.AdamW, model: nn.Module) -> dict[str, Tensor]:
    """Return every moment and step count by name; zeros before the first step."""
    tensors = {}
    for name, parameter in _learned(model):
        state = optimiser.state.get(parameter, {})
        for moment in MOMENTS:
            tensor = state.get(moment)
            tensors[f"{moment}/{name}"] = torch.zeros_like(parameter) if tensor is None else tensor
        tensors[f"step/{name}"] = state.get("step", torch.zeros((), device=parameter.device))
    return tensors


def load_state(
    optimiser: torch.optim.AdamW, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load copies of the tensors of `state_tensors` into an optimiser of the same model."""
    for name, parameter in _learned(model):
        state = {m: torch.empty_like(parameter).copy_(tensors[f"{m}/{name}"]) for m in MOMENTS}
        state["step"] = tensors[f"step/{name}"].to(parameter.device, copy=True)
        optimiser.state[parameter] = state


def _learned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,  # noqa: ARG005 - one signature for every schedule
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),  # from 1 to 0
}
"""By name, the factor of the learning rate after a share `done` of the steps, 0 to 1."""


def schedule_factor(step: float, *, total: int, warmup: float, schedule: str) -> float:
    """Return the factor of the learning rate at optimiser step `step` of `total`, from 0.

    The first `round(warmup * total)` steps rise linearly and the last of them reaches 1; the
    schedule then runs over the others, so a cosine would reach 0 at the step after the last.

    Example:
        >>> [schedule_factor(s, total=4, warmup=0.5, schedule="cosine") for s in range(4)]
        [0.5, 1.0, 1.0, 0.5]
    """
    rising = round(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / (total - rising))
