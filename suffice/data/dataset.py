"""What every task gives: three splits of inputs and labels, and how to prepare an input.

Letters: N rows, C channels, H height, W width, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError, DataError, MaskError, ShapeError

NOT_ASKED = -100
"""The label of a token where nothing is asked, which `cross_entropy` passes over."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of inputs with their labels.

    Args:
        inputs: images uint8 or float32 [N, C, H, W], or tokens int64 [N, T].
        labels: int64 [N], one answer for each row; or, tokens only, int64 [N, T], an answer at
            each token that is asked and NOT_ASKED at the others.
        valid: tokens only, bool [N, T], True at a real token; None when every token is real.

    Raises:
        ShapeError: if the three do not have the same rows, or inputs are neither shape.
        MaskError: if valid is not boolean.
        ConfigError: if labels are not int64.
        DataError: if a row of tokens asks nothing, or asks at padding.
    """

    inputs: Tensor
    labels: Tensor
    valid: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.inputs.shape)
        if len(shape) not in (2, 4):
            raise ShapeError(f"inputs have shape {shape}; give [N, C, H, W] or [N, T].")
        legal = [shape[:1], shape] if len(shape) == 2 else [shape[:1]]
        if tuple(self.labels.shape) not in legal:
            raise ShapeError(
                f"labels have shape {tuple(self.labels.shape)} for {shape[0]} rows of inputs; "
                "give one label for each row, [N], or for tokens one for each token, [N, T]."
            )
        if self.labels.dtype != torch.int64:
            raise ConfigError(f"labels are {self.labels.dtype}; give torch.int64.")
        self._check_valid(shape)
        self._check_asked()

    def _check_valid(self, shape: tuple[int, ...]) -> None:
        if self.valid is None:
            return
        if len(shape) != 2 or self.valid.shape != self.inputs.shape:
            raise ShapeError(
                f"valid has shape {tuple(self.valid.shape)} for inputs {shape}; "
                "give the shape of the tokens [N, T], and none for images."
            )
        if self.valid.dtype != torch.bool:
            raise MaskError(f"valid is {self.valid.dtype}; give torch.bool, True at a real token.")

    def _check_asked(self) -> None:
        if self.labels.dim() == 1:
            return
        asked = self.labels != NOT_ASKED
        if not (each := asked.any(dim=1)).all():
            raise DataError(
                f"row {int(each.long().argmin())} asks nothing: all its labels are {NOT_ASKED}; "
                "ask at one token at least, or leave the row out."
            )
        if self.valid is not None and (lost := asked & ~self.valid).any():
            row, token = lost.nonzero()[0].tolist()
            raise DataError(
                f"row {row} asks at token {token}, which is padding; put {NOT_ASKED} there."
            )

    @property
    def answers(self) -> Tensor:
        """How many answers each row asks for, int64 [N]."""
        if self.labels.dim() == 1:
            return torch.ones_like(self.labels)
        return (self.labels != NOT_ASKED).sum(dim=1)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Tensor) -> Split:
        """Return the rows at `indices` (int64 [M]), in that order."""
        valid = None if self.valid is None else self.valid[indices]
        return Split(self.inputs[indices], self.labels[indices], valid)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A task: what to learn from, what to choose by, what to report on.

    Args:
        name: the task's key, such as "mnist".
        title: the task in a reader's words.
        source: who made the data, and its terms.
        train: the rows to learn from.
        validation: the rows to choose weights by; none of them is in train.
        test: the rows to report on.
        num_classes: labels are 0 .. num_classes - 1, or NOT_ASKED.
        mean: mean of the training images, in units of the inputs; unused by tokens.
        std: standard deviation of the training images, in the same units; unused by tokens.
        vocabulary: the word of each token id, for tasks of words.
        chance: accuracy of a guess that has not found the answer, a fraction; None where no such
            figure is known.

    Raises:
        ShapeError: if the inputs of the splits differ in shape beyond their rows.
        DataError: if a label is outside 0 .. num_classes - 1.
        ConfigError: if std is not positive, or chance is no accuracy.
    """

    name: str
    title: str
    source: str
    train: Split
    validation: Split
    test: Split
    num_classes: int
    mean: float = 0.0
    std: float = 1.0
    vocabulary: tuple[str, ...] | None = None
    chance: float | None = None

    def __post_init__(self) -> None:
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        shapes = {name: tuple(split.inputs.shape[1:]) for name, split in splits.items()}
        if len(set(shapes.values())) > 1:
            raise ShapeError(f"{self.name}: the splits' rows differ in shape: {shapes}.")
        for name, split in splits.items():
            outside = (split.labels < 0) | (split.labels >= self.num_classes)
            if split.labels.dim() == 2:
                outside &= split.labels != NOT_ASKED
            if outside.any():
                raise DataError(
                    f"{self.name}: {name} holds label {split.labels[outside][0].item()}; "
                    f"labels are 0 to {self.num_classes - 1}."
                )
        if not self.std > 0.0:  # so that NaN is refused too
            raise ConfigError(f"{self.name}: std={self.std}; give a positive number.")
        if self.chance is not None and not 0.0 <= self.chance <= 1.0:
            raise ConfigError(f"{self.name}: chance={self.chance}; give a fraction from 0 to 1.")

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return what a model is given.

        Shapes:
            inputs: images [B, C, H, W] -> float32 (inputs - mean) / std; tokens [B, T] -> as given.
        """
        if inputs.dtype == torch.int64:
            return inputs
        return (inputs.float() - self.mean) / self.std
