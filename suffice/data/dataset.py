"""Datasets: three splits of inputs and labels, and the preprocessing of an input.

Letters: N rows, C channels, H height, W width, S tokens of a source, T tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from suffice.errors import ConfigError, DataError, MaskError, ShapeError
from suffice.utils.records import is_whole

IGNORE_INDEX = -100
"""The label of a token that has none, which `cross_entropy` ignores."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of inputs with their labels."""

    inputs: Tensor  # images uint8 or float32 [N, C, H, W], or tokens int64 [N, T]
    # int64 [N], one for each row; or, tokens only, int64 [N, T], one for each token, IGNORE_INDEX
    # where it has none
    labels: Tensor
    # tokens only, bool [N, T], True at a real token; None when every token is real
    valid: Tensor | None = None
    # source text of a translation, int64 [N, S]; inputs are its translation so far. None for other
    # tasks.
    source: Tensor | None = None
    source_valid: Tensor | None = None  # mask of the source, bool [N, S]

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
        _check_valid("valid", self.valid, "inputs", self.inputs)
        if self.source is not None:
            source = tuple(self.source.shape)
            if self.labels.dim() != 2 or len(source) != 2 or source[0] != shape[0]:
                raise ShapeError(
                    f"a source has shape {source} for inputs {shape}; give tokens [N, S] with "
                    "tokens [N, T] with a label each."
                )
            _check_valid("source_valid", self.source_valid, "source", self.source)
        elif self.source_valid is not None:
            raise ShapeError("source_valid is given without a source; give both, or neither.")
        if self.labels.dim() == 2:
            self._check_targets()

    def _check_targets(self) -> None:
        labelled = self.labels != IGNORE_INDEX
        if not (complete := labelled.any(dim=1)).all():
            raise DataError(
                f"row {int(complete.long().argmin())} has no targets: all its labels are "
                f"{IGNORE_INDEX}; give one token a label at least, or leave the row out."
            )
        if self.valid is not None and (lost := labelled & ~self.valid).any():
            row, token = lost.nonzero()[0].tolist()
            raise DataError(
                f"row {row} has a label at token {token}, which is padding; put {IGNORE_INDEX} "
                "there."
            )

    @property
    def answers(self) -> Tensor:
        """Labels of each row, not counting ignored ones, int64 [N]."""
        if self.labels.dim() == 1:
            return torch.ones_like(self.labels)
        return (self.labels != IGNORE_INDEX).sum(dim=1)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Tensor) -> Split:
        """Return the rows at `indices` (int64 [M]), in that order."""
        tensors = (self.inputs, self.labels, self.valid, self.source, self.source_valid)
        return Split(*(None if tensor is None else tensor[indices] for tensor in tensors))


def _check_valid(name: str, valid: Tensor | None, of: str, tokens: Tensor) -> None:
    if valid is None:
        return
    if tokens.dim() != 2 or valid.shape != tokens.shape:
        raise ShapeError(
            f"{name} has shape {tuple(valid.shape)} for {of} {tuple(tokens.shape)}; "
            "give the shape of the tokens [N, T], and none for images."
        )
    if valid.dtype != torch.bool:
        raise MaskError(f"{name} is {valid.dtype}; give torch.bool, True at a real token.")


@dataclass(frozen=True, kw_only=True)
class ImagePreparation:
    """The way from pixels to the numbers that a model of images reads."""

    # mean of the training images, in units of the inputs; one number, or one for each channel
    mean: float | tuple[float, ...] = 0.0
    # standard deviation of the training images, in the same form as the mean
    std: float | tuple[float, ...] = 1.0
    side: int | None = None  # pixels that images are resized to; None leaves them as they are
    white: float = 255.0  # value of a white pixel in the inputs

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return images as a model reads them.

        Shapes:
            inputs: [B, C, H, W] -> float32 (inputs - mean) / std, [B, C, side, side] where a side
                is given
        """
        images = (inputs.float() - _per_channel(self.mean, inputs)) / _per_channel(self.std, inputs)
        if self.side is None or images.shape[2:] == (self.side, self.side):
            return images
        smaller = self.side < images.shape[2]
        return interpolate(images, size=(self.side, self.side), mode="bilinear", antialias=smaller)


def _per_channel(values: float | tuple[float, ...], images: Tensor) -> Tensor | float:
    if not isinstance(values, tuple):
        return values
    return torch.tensor(values, device=images.device)[:, None, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A task."""

    name: str  # the task's key, such as "mnist"
    title: str  # one line for reports
    source: str  # who made the data, and its terms
    train: Split  # the rows to learn from
    validation: Split  # the rows that weights are chosen by; none of them is in train
    test: Split  # the rows to report on
    num_classes: int  # labels are 0 .. num_classes - 1, or IGNORE_INDEX.
    # of images, see `ImagePreparation`
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    side: int | None = None
    white: float = 255.0
    # the name of each class, None where its number is its name
    class_names: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None  # the word of each token id, for tasks of words
    # rule that cuts texts into these words, of `suffice.data.reviews.RULES`
    word_rule: str = "ascii"
    # vocabulary of the source's ids, for translation
    source_vocabulary: tuple[str, ...] | None = None
    # tokenizer of a language model's tokens, with `save(folder)`; None if tokens are not text
    tokenizer: Any = None
    chance: float | None = None  # accuracy of a guess, a fraction; None where it is not known
    # the text of each test row as it was given, for tasks of texts; where test_rows are given, that
    # of each row they can name
    test_texts: tuple[str, ...] | None = None
    train_texts: tuple[str, ...] | None = None  # text of each training row, for tasks of texts
    # numbers of the test rows in the table that folds were cut from, int64 [N]; None where every
    # training is tested on the same rows
    test_rows: Tensor | None = None
    # number of the group that each test row belongs to, the same in all folds, int64 [N]; None
    # where rows belong to none
    test_groups: Tensor | None = None
    # tokens of each training row before it was cut, int64 [N]; None where unknown
    lengths: Tensor | None = None
    notes: tuple[str, ...] = ()  # sentences about rows that were left out of the data
    # facts about the data in plain values, such as the names of columns; it goes into the folder of
    # every model trained on them
    facts: dict[str, Any] = field(default_factory=dict)
    # metrics of the test split besides loss and accuracy, from `suffice.comparison.training.SCORES`
    scores: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        shapes = {name: _widths(split) for name, split in splits.items()}
        if len(set(shapes.values())) > 1:
            raise ShapeError(f"{self.name}: the splits' rows differ in shape: {shapes}.")
        for name, split in splits.items():
            outside = (split.labels < 0) | (split.labels >= self.num_classes)
            if split.labels.dim() == 2:
                outside &= split.labels != IGNORE_INDEX
            if outside.any():
                raise DataError(
                    f"{self.name}: {name} holds label {split.labels[outside][0].item()}; "
                    f"labels are 0 to {self.num_classes - 1}."
                )
        if not (torch.tensor(self.std) > 0.0).all():  # so that NaN is refused too
            raise ConfigError(f"{self.name}: std={self.std}; give a positive number.")
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise DataError(
                f"{self.name}: {len(self.class_names)} names for {self.num_classes} classes; give "
                "one for each."
            )
        named = self.test_texts if self.test_rows is None else self.test_rows
        if named is not None and len(named) != len(self.test):
            raise DataError(
                f"{self.name}: {len(named)} texts for {len(self.test)} test rows; give "
                "one for each."
            )
        if self.chance is not None and not 0.0 <= self.chance <= 1.0:
            raise ConfigError(f"{self.name}: chance={self.chance}; give a fraction from 0 to 1.")

    @property
    def preparation(self) -> ImagePreparation:
        """What a model reads of an image; of no use to tokens."""
        return ImagePreparation(mean=self.mean, std=self.std, side=self.side, white=self.white)

    def frequencies(self, part: str) -> Tensor:
        """Return how often each label occurs in a part, ignored ones left out, int64 [classes]."""
        labels = getattr(self, part).labels
        return labels[labels != IGNORE_INDEX].bincount(minlength=self.num_classes)

    @property
    def majority(self) -> float | None:
        """Share of the test labels that are the label most frequent in training, 0 to 1.

        This is the accuracy of a model that has learned nothing but the frequencies; None where
        tokens have labels and the task states the accuracy of a guess.
        """
        if self.train.labels.dim() == 2 and self.chance is not None:
            return None
        test = self.frequencies("test")
        return float(test[self.frequencies("train").argmax()] / test.sum())

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return inputs as a model reads them: tokens [B, T] as given, images prepared."""
        return inputs if inputs.dtype == torch.int64 else self.preparation(inputs)


def _widths(split: Split) -> tuple[int, ...]:
    source = () if split.source is None else split.source.shape[1:]
    return (*split.inputs.shape[1:], *source)


def permutation(count: int) -> Tensor:
    """Return a fixed permutation of range(count), int64 [count]."""
    order = np.random.RandomState(0).permutation(count)  # a stream that is frozen for good
    return torch.from_numpy(order.astype(np.int64))


def draw_rows(count: int, rows: int | None) -> Tensor:
    """Return `rows` rows of range(count), always the same and ascending; None keeps all."""
    return permutation(count)[:rows].sort().values


def held_out(count: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Cut the fixed permutation of range(count) in two: the rows kept and the rows held out.

    The rows held out are the last round(fraction * count) of the permutation.
    """
    order = permutation(count)
    cut = count - round(fraction * count)
    return order[:cut], order[cut:]


def stratified(labels: Tensor, train: float, validation: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows for training, validation and test, each ascending: shares of every class.

    `train` and `validation` are fractions of each class's rows; the rest is for the test.
    """
    order = permutation(len(labels))
    parts = []
    for label in labels.unique():
        rows = order[labels[order] == label]
        cuts = round(train * len(rows)), round((train + validation) * len(rows))
        parts.append(rows.tensor_split(cuts))
    first, second, third = (torch.cat(rows).sort().values for rows in zip(*parts, strict=True))
    return first, second, third


def parts_of_keys(
    pairs: Sequence[tuple[str, Hashable]], shares: Mapping[str, float]
) -> dict[str, str]:
    """Return the part of each key that is not for training, a share of every class.

    `pairs` are the key and the class of each row; a key is its text, or a digest of what it holds.
    Equal keys are in one part, that of the first's class. Of each class the first keys by sha1 are
    held out, so the order of the rows does not matter.
    """
    class_of = dict(reversed(pairs))  # the first, where equal keys have different ones
    groups: dict[Hashable, list[str]] = {}
    for key in sorted(class_of, key=sha1_of):
        groups.setdefault(class_of[key], []).append(key)
    place: dict[str, str] = {}
    for keys in groups.values():
        cut = 0
        for part, share in shares.items():
            count = round(share * len(keys))
            place |= dict.fromkeys(keys[cut : cut + count], part)
            cut += count
    return place


def folds_of_keys(
    pairs: Sequence[tuple[str, Hashable]], folds: int, *, turn: int = 0
) -> dict[str, int]:
    """Return the fold of each key, 0 .. folds - 1; every fold has the same share of every class.

    Equal keys are in one fold and count as of their most frequent class. The keys of each class are
    dealt in turn, in the order of their sha1 with the number of the partition, `turn`, so the order
    of the rows does not matter.
    """
    counts = Counter(pairs)
    # the last of a key is its most frequent class, of equals the first by name
    order = sorted(counts, key=lambda pair: str(pair[1]), reverse=True)
    class_of = dict(sorted(order, key=counts.__getitem__))
    dealt = sorted(class_of, key=lambda key: (str(class_of[key]), sha1_of(f"{turn} {key}")))
    return {key: position % folds for position, key in enumerate(dealt)}


def sha1_of(text: str) -> int:
    """Return the sha1 of a text as a number below 2^160."""
    # half a pair of surrogates, which JSON can hold, counts as any other character
    return int.from_bytes(hashlib.sha1(text.encode(errors="surrogatepass")).digest(), "big")


def check_counts(task: str, *, least: int = 1, **counts: int | None) -> None:
    """Raise ConfigError for counts that are neither None nor whole numbers of at least `least`."""
    wrong = [
        f"{name}={count!r}"
        for name, count in counts.items()
        if count is not None and not is_whole(count, least)
    ]
    if wrong:
        raise ConfigError(f"{task}: {', '.join(wrong)}; give whole numbers of at least {least}.")
