"""What a converted model and its teacher have in common, and in which layers they differ.

Letters: M d_model, V vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attentions
from suffice.convert.feature_permutation import movable, permuted
from suffice.errors import ConfigError, ShapeError
from suffice.layers.packed import Packed
from suffice.models import LM

UNLIKE = 0.5  # of the embedding's energy: above it a model comes from another one
SAME = 1e-4  # of the largest logit: what rounding explains
GIVE = "give the model that it was converted from"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A student and its teacher, copies of what was given.

    Args:
        student: what is healed.
        teacher: what it was, in evaluation, with the features in the student's order.
        layers: names of the attention layers that differ.
    """

    student: LM
    teacher: LM
    layers: tuple[str, ...]


def paired(student: nn.Module, teacher: nn.Module) -> Pair:
    """Return copies of two models that belong together.

    Raises:
        ConfigError: if one of them is no language model, is packed or holds NaN, or the student is
            no conversion of the teacher.
        ShapeError: if their vocabularies differ.
    """
    for called, one in (("student", student), ("teacher", teacher)):
        _check(called, one)
    ours, theirs = student.config, teacher.config
    if ours.vocabulary_size != theirs.vocabulary_size:
        raise ShapeError(
            f"the student has {ours.vocabulary_size:,} tokens and the teacher "
            f"{theirs.vocabulary_size:,}; {GIVE}."
        )
    free = {"dropout": 0.0, "length": 1}
    if replace(ours, **free) != replace(theirs, **free):
        told = [
            f"{name} is {value!r} there and {vars(ours)[name]!r} here"
            for name, value in vars(theirs).items()
            if name not in free and vars(ours)[name] != value
        ]
        raise ConfigError(f"the student is no conversion of the teacher: {told[0]}; {GIVE}.")
    order = order_of(student, teacher)
    moved = copy.deepcopy(teacher) if order is None else permuted(teacher, order)
    return Pair(
        student=copy.deepcopy(student).requires_grad_(True),
        teacher=moved.eval().requires_grad_(False),
        layers=_different(student, moved),
    )


def order_of(student: LM, teacher: LM) -> Tensor | None:
    """Return the feature of the teacher that each of the student's is, [M]; None = the same.

    A conversion may reorder the features of the residual stream. They are told by the embeddings,
    also where a training has changed these a little.

    Raises:
        ConfigError: if the embeddings are too unlike for that, or such a teacher has no other
            order.
    """
    from scipy.optimize import linear_sum_assignment

    ours, theirs = (
        one.embedding.tokens.weight.detach().double().cpu() for one in (student, teacher)
    )
    if torch.equal(ours, theirs):
        return None
    far = torch.cdist(ours.T, theirs.T).square()
    mine, of_theirs = linear_sum_assignment(far.numpy())
    least = far[torch.from_numpy(mine), torch.from_numpy(of_theirs)].sum()
    if least > UNLIKE * theirs.square().sum():
        raise ConfigError(
            f"the student is no conversion of the teacher: their embeddings are unlike; {GIVE}."
        )
    if far.diagonal().sum() <= least * (1 + 1e-9):
        return None
    if not movable(teacher):
        raise ConfigError(
            "the student's features stand in another order than the teacher's, which can have no "
            f"other; {GIVE}."
        )
    return torch.from_numpy(of_theirs)


@torch.no_grad()
def check_unlike(pair: Pair, rows: Tensor) -> None:
    """Refuse two models that answer alike.

    Args:
        pair: the models, on one device.
        rows: of tokens, int64 [B, T].

    Raises:
        ConfigError: if there is nothing to heal.
    """
    rows = rows.to(pair.teacher.device)
    student = pair.student.eval()
    wanted = pair.teacher(rows)
    if (student(rows) - wanted).abs().max() <= SAME * wanted.abs().max():
        raise ConfigError(
            f"the student answers as the teacher does on rows of {rows.shape[1]} tokens, so there "
            "is nothing to heal."
        )


def _check(called: str, model: nn.Module) -> None:
    if type(model) is not LM:
        raise ConfigError(
            f"the {called} is a {type(model).__name__}, and only language models (LM) are healed."
        )
    if any(isinstance(one, Packed) for one in model.modules()):
        raise ConfigError(
            f"the {called} has packed weights, which do not learn; heal first, pack what comes out."
        )
    for name, tensor in model.state_dict().items():
        if not bool(tensor.isfinite().all()):
            raise ConfigError(
                f"the {called} holds NaN or infinity in {name!r:.80}; give weights that are "
                "numbers."
            )


def _different(student: LM, teacher: LM) -> tuple[str, ...]:
    """Return the layers whose composition or weights differ."""
    ours, theirs = attentions(student), attentions(teacher)
    return tuple(
        name
        for name, layer in ours.items()
        if layer.spec != theirs[name].spec
        or any(
            not torch.equal(one, other)
            for one, other in zip(
                layer.state_dict().values(), theirs[name].state_dict().values(), strict=True
            )
        )
    )
