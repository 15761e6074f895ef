"""What can be refused before a training begins."""

from __future__ import annotations

from pathlib import Path

from suffice.data.dataset import Dataset
from suffice.errors import ConfigError, DataError
from suffice.train.resumable import check_place
from suffice.train.settings import Training


def refuse(dataset: Dataset, training: Training, *, checkpoint: Path | None, resume: bool) -> None:
    """Raise what is wrong with a training that has not begun.

    Raises:
        DataError: if the training or the validation split has no rows.
        ConfigError: if the augmentation does not fit the data, or resume has no checkpoint.
        CheckpointError: if the checkpoint is not there to resume, or cannot be written.
    """
    for name, split in (("training", dataset.train), ("validation", dataset.validation)):
        if len(split) == 0:
            raise DataError(f"the {name} split of {dataset.name} has no rows; give at least one.")
    if training.augment is not None and dataset.train.inputs.dim() != 4:
        raise ConfigError(
            f"augment={training.augment!r} is for images, {dataset.name} has tokens; give None."
        )
    check_place(checkpoint, resume=resume)
