"""Matches a converted model with its teacher: feature order, and the layers that differ."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers
from suffice.convert.feature_permutation import can_permute, permuted
from suffice.errors import ConfigError, ShapeError
from suffice.layers.packed import Packed
from suffice.models import LM

MAX_DRIFT = 0.5  # of the embedding's energy; beyond it the models are unrelated
ROUNDING = 1e-4  # of the largest logit
GIVE = "give the model that it was converted from"


@dataclass(frozen=True, kw_only=True)
class Pair:
    student: LM  # to heal
    teacher: LM  # in evaluation, with its features in the student's order
    layers: tuple[str, ...]  # names of the attention layers that differ


def paired(student: nn.Module, teacher: nn.Module) -> Pair:
    """Return copies of a student and its teacher, with equal feature order."""
    student, teacher = _checked("student", student), _checked("teacher", teacher)
    sizes, wanted = student.config, teacher.config
    if sizes.vocabulary_size != wanted.vocabulary_size:
        raise ShapeError(
            f"the student has {sizes.vocabulary_size:,} tokens and the teacher "
            f"{wanted.vocabulary_size:,}; {GIVE}."
        )
    free: dict[str, Any] = {"dropout": 0.0, "length": 1}
    if replace(sizes, **free) != replace(wanted, **free):
        name, value = next(
            (name, value)
            for name, value in vars(wanted).items()
            if name not in free and vars(sizes)[name] != value
        )
        raise ConfigError(
            f"the student is not a conversion of the teacher: {name} is {value!r} there and "
            f"{vars(sizes)[name]!r} here; {GIVE}."
        )
    order = feature_order(student, teacher)
    teacher = copy.deepcopy(teacher) if order is None else permuted(teacher, order)
    return Pair(
        student=copy.deepcopy(student).requires_grad_(True),
        teacher=teacher.eval().requires_grad_(False),
        layers=_different_layers(student, teacher),
    )


def feature_order(student: LM, teacher: LM) -> Tensor | None:
    """Return the teacher's feature for each of the student's, [M]; None: the same order."""
    from scipy.optimize import linear_sum_assignment

    student_table, teacher_table = (
        one.embedding.tokens.weight.detach().double().cpu() for one in (student, teacher)
    )
    if torch.equal(student_table, teacher_table):
        return None
    distances = torch.cdist(student_table.T, teacher_table.T).square()
    rows, columns = map(torch.from_numpy, linear_sum_assignment(distances.numpy()))
    least = distances[rows, columns].sum()
    if least > MAX_DRIFT * teacher_table.square().sum():
        raise ConfigError(
            f"the student does not come from the teacher: their embeddings are unrelated; {GIVE}."
        )
    if distances.diagonal().sum() <= least * (1 + 1e-9):
        return None
    if not can_permute(teacher):
        raise ConfigError(
            "the student's features are in another order than the teacher's, whose features cannot "
            f"be permuted; {GIVE}."
        )
    return columns


@torch.no_grad()
def check_unlike(pair: Pair, rows: Tensor) -> None:
    """Check that the two models give different predictions."""
    rows = rows.to(pair.teacher.device)
    logits, wanted = pair.student.eval()(rows), pair.teacher(rows)
    if (logits - wanted).abs().max() <= ROUNDING * wanted.abs().max():
        raise ConfigError(
            f"the student predicts the same as the teacher on rows of {rows.shape[1]} tokens, so "
            "there is nothing to heal."
        )


def _checked(role: str, model: nn.Module) -> LM:
    if type(model) is not LM:
        raise ConfigError(
            f"the {role} is a {type(model).__name__}, and only language models (LM) are healed."
        )
    if any(isinstance(module, Packed) for module in model.modules()):
        raise ConfigError(
            f"the {role} has packed weights, which cannot be trained; unpack them "
            "(suffice.quantise.unpack) first."
        )
    for name, tensor in model.state_dict().items():
        if not bool(tensor.isfinite().all()):
            raise ConfigError(f"the {role} holds NaN or infinity in {name!r:.80}; repair it first.")
    return model


def _different_layers(student: LM, teacher: LM) -> tuple[str, ...]:

    def same(name: str) -> bool:
        ours, theirs = students[name], teachers[name]
        return ours.spec == theirs.spec and all(
            map(torch.equal, ours.state_dict().values(), theirs.state_dict().values())
        )

    students, teachers = attention_layers(student), attention_layers(teacher)
    return tuple(name for name in students if not same(name))
