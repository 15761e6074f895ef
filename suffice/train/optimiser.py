"""AdamW and Muon with their schedules, and their state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, check_known
from suffice.layers import Block, CrossBlock

ADAMW, MUON = "adamw", "muon"
OPTIMISERS = (ADAMW, MUON)
MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW
MOMENTUM = "momentum_buffer"  # of Muon


class OptimiserSettings(Protocol):
    """The settings of the optimiser, which every kind of training has."""

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    optimiser: str


def check_optimiser(name: str) -> None:
    """Refuse the name of no optimiser, and one that this torch lacks."""
    check_known("optimiser", name, OPTIMISERS)
    if name == MUON and not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"optimiser={MUON}: torch {torch.__version__} has no Muon; install torch 2.9 or later, "
            f"or train with {ADAMW}."
        )


class Optimiser:
    """One or two of torch's optimisers that step together."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts, whose entries may be set."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """The state of each parameter, whichever part steps it."""
        return {p: state for part in self.parts for p, state in part.state.items()}

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for part in self.parts:
            part.step()


def build(model: nn.Module, training: OptimiserSettings) -> Optimiser:
    """Return the optimiser over the parameters that learn.

    "muon" steps the matrices inside the blocks by Muon, whose update has the size of an AdamW
    update, so that the learning rate means the same; all else is stepped by fused AdamW.
    Tensors of two or more dimensions are decayed; vectors and scalars are not.
    """
    check_optimiser(training.optimiser)
    learned = [p for p in model.parameters() if p.requires_grad]
    if not learned:
        raise ConfigError("the model has no parameter that requires a gradient; unfreeze some.")
    hidden = _hidden_matrices(model) if training.optimiser == MUON else []
    if training.optimiser == MUON and not hidden:
        raise ConfigError(
            f"optimiser={MUON}: the model has no block with a matrix that learns; train with "
            f"{ADAMW}."
        )
    by_muon = set(map(id, hidden))
    rest = [p for p in learned if id(p) not in by_muon]
    parts = []
    if hidden:
        muon = torch.optim.Muon(
            hidden,
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        parts.append(muon)
    if rest:
        parts.append(_adamw(rest, training))
    return Optimiser(*parts)


def _adamw(learned: list[nn.Parameter], training: OptimiserSettings) -> torch.optim.AdamW:
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


def _hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    blocks = [module for module in model.modules() if isinstance(module, (Block, CrossBlock))]
    matrices = (p for b in blocks for p in b.parameters() if p.requires_grad and p.dim() == 2)
    return list({id(parameter): parameter for parameter in matrices}.values())


def state_tensors(optimiser: Optimiser, model: nn.Module) -> dict[str, Tensor]:
    """Return every moment and step count by name; zeros before the first step."""
    tensors = {}
    for name, parameter, part in _learned(optimiser, model):
        state = part.state.get(parameter, {})
        for moment in _moments(part):
            tensor = state.get(moment)
            tensors[f"{moment}/{name}"] = torch.zeros_like(parameter) if tensor is None else tensor
        if _counts(part):
            zero = torch.zeros((), device=parameter.device)
            tensors[f"step/{name}"] = state.get("step", zero)
    return tensors


def load_state(optimiser: Optimiser, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load copies of the tensors of `state_tensors` into an optimiser of the same model."""
    for name, parameter, part in _learned(optimiser, model):
        state = {
            m: torch.empty_like(parameter).copy_(tensors[f"{m}/{name}"]) for m in _moments(part)
        }
        if _counts(part):
            state["step"] = tensors[f"step/{name}"].to(parameter.device, copy=True)
        part.state[parameter] = state


def _moments(part: torch.optim.Optimizer) -> tuple[str, ...]:
    return MOMENTS if _counts(part) else (MOMENTUM,)


def _counts(part: torch.optim.Optimizer) -> bool:
    return isinstance(part, torch.optim.AdamW)


def _learned(
    optimiser: Optimiser, model: nn.Module
) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
    part_of = {
        id(p): part for part in optimiser.parts for g in part.param_groups for p in g["params"]
    }
    return ((name, p, part_of[id(p)]) for name, p in model.named_parameters() if p.requires_grad)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,  # noqa: ARG005 - one signature for every schedule
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),  # from 1 to 0
}
"""By name, the factor of the learning rate after a share `done` of the steps, 0 to 1."""


def schedule_factor(step: float, *, total: int, warmup: float, schedule: str) -> float:
    """Return the factor of the learning rate at optimiser step `step` of `total`, from 0.

    The first `round(warmup * total)` steps rise linearly and the last of them reaches 1; the
    schedule then runs over the others, so a cosine would reach 0 at the step after the last.
    """
    rising = round(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / (total - rising))
