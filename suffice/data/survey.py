"""Statistics of a data set: class balance, duplicates across splits, lengths."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffice.data.dataset import Dataset, Split

MAX_DUPLICATE_BYTES = 2 << 30  # bytes of inputs that are searched for repeated rows


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Counts of a data set."""

    rows: dict[str, int]  # rows of each part, by name
    classes: tuple[str, ...] = ()  # names of the classes; empty where tokens have labels, not rows
    counts: dict[str, tuple[int, ...]]  # rows of each class, by part
    majority: float | None = None  # see `Dataset.majority`
    majority_class: str | None = None  # the name of that label
    chance: float | None = None  # accuracy of a blind guess; None where it is not known
    # test loss of answering with the frequencies of the training labels, each counted once more, in
    # nats a label; None in results that are older than this
    frequency_loss: float | None = None
    # rows of each part that repeat an earlier one of it, as the model reads them; None where the
    # data were too large to look
    repeated: dict[str, int] | None = None
    # test and validation rows that are also in an earlier split
    overlap: dict[str, int] | None = None
    read: int | None = None  # tokens or words that are read of a text; None for images
    # words of a training text, median; None where lengths are not known
    median: float | None = None
    longest: int | None = None  # words of the longest
    cut: float | None = None  # share of the training texts that are longer than what is read
    notes: tuple[str, ...] = ()  # sentences about rows that were left out of the data
    # rows that all folds test together; None where all seeds test the same rows
    tested: int | None = None

    @property
    def rows_of_a_point(self) -> float:
        """Test rows that one point of accuracy is."""
        return (self.tested or self.rows["test"]) / 100


def survey(dataset: Dataset) -> Survey:
    """Return the counts of a data set, of a fold those of this one."""
    parts = {name: getattr(dataset, name) for name in ("train", "validation", "test")}
    rows = {name: len(split) for name, split in parts.items()}
    repeated, overlap = _repetitions(parts)
    labelled = dataset.train.labels.dim() == 1
    texts = dataset.train.inputs.dim() == 2
    counts, classes = {}, ()
    if labelled:
        counts = {name: tuple(dataset.frequencies(name).tolist()) for name in parts}
        classes = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    read = dataset.train.inputs.shape[1] if texts else None
    lengths, notes, tested = dataset.lengths, dataset.notes, None
    if dataset.test_rows is not None and dataset.test_texts is not None:
        tested = len(dataset.test_texts)
        notes += (
            f"each seed tests its own fold of the rows, so {round(tested / rows['test'])} seeds "
            f"test each of the {tested:,} once; the parts above are those of the first",
        )
    return Survey(
        rows=rows,
        classes=classes,
        counts=counts,
        majority=dataset.majority,
        majority_class=None if dataset.majority is None else _most_frequent(dataset),
        chance=guess_accuracy(dataset),
        frequency_loss=_frequency_loss(dataset),
        repeated=repeated,
        overlap=overlap,
        read=read,
        median=None if lengths is None else float(lengths.double().median()),
        longest=None if lengths is None else int(lengths.max()),
        cut=None if lengths is None else float((lengths > read).double().mean()),
        notes=notes,
        tested=tested,
    )


def guess_accuracy(dataset: Dataset) -> float | None:
    """Return the accuracy of a blind guess: that of the task, or 1 / number of classes."""
    if dataset.chance is not None or dataset.train.labels.dim() == 2:
        return dataset.chance
    return 1.0 / dataset.num_classes


def _most_frequent(dataset: Dataset) -> str:
    most = int(dataset.frequencies("train").argmax())
    if names := dataset.class_names or dataset.vocabulary:
        return names[most]
    return str(most) if dataset.tokenizer is None else dataset.tokenizer.decode([most])


def _frequency_loss(dataset: Dataset) -> float:
    train, test = (dataset.frequencies(part).double() for part in ("train", "test"))
    return float(-test @ ((train + 1.0) / (train + 1.0).sum()).log() / test.sum())


def _repetitions(parts: dict[str, Split]) -> tuple[dict[str, int] | None, ...]:
    if sum(split.inputs.nbytes for split in parts.values()) > MAX_DUPLICATE_BYTES:
        return None, None
    seen: set[bytes] = set()
    repeated, overlap = {}, {}
    for name, split in parts.items():
        keys = [_key(split, row) for row in range(len(split))]
        repeated[name] = len(keys) - len(set(keys))
        if seen:
            overlap[name] = sum(key in seen for key in keys)
        seen.update(keys)
    return repeated, overlap


def _key(split: Split, row: int) -> bytes:
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for rows in (split.inputs, split.source):
        if rows is not None:
            digest.update(rows[row].contiguous().view(torch.uint8).numpy())
    return digest.digest()
