"""Data sets of the `datasets` library: on the Hugging Face hub, or in a folder it saved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError, DataError, installed_for

REFERENCE = re.compile(
    r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<subset>[\w.-]+))?"
    r"(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
FORM = "hf:ORG/NAME[/SUBSET][@REVISION][:SPLIT]"
TRAIN = "train"  # the split that is read unless another is named
SINGLE, SEVERAL = "dataset_info.json", "dataset_dict.json"  # files that save_to_disk writes
BATCH_ROWS = 1024  # rows that are converted at once


def is_saved_dataset(path: Path | str) -> bool:
    """Return whether a path names a data set of the hub or a folder of `save_to_disk`."""
    place = Path(path)
    return str(path).startswith("hf:") or any(
        (place / name).is_file() for name in (SINGLE, SEVERAL)
    )


def rows_of_dataset(path: str) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    """Return the columns and the rows of a data set; classes are their names.

    Args:
        path: "hf:ORG/NAME", "hf:ORG/NAME/SUBSET@REVISION:SPLIT", or a folder that
            `datasets.save_to_disk` wrote. Of several splits the one named train is read.

    Raises:
        ConfigError: if the reference is malformed, or the library datasets is not installed.
        DataError: if the data set or the split is absent or cannot be read.
    """
    dataset = _opened(path)
    return list(dataset.column_names), enumerate(_rows(dataset), 1)


def digest_of_dataset(path: str) -> str:
    """Return sixteen characters that identify a data set by its columns and all its rows."""
    dataset = _opened(path)
    content = hashlib.sha256(json.dumps(dataset.column_names).encode())
    for row in _rows(dataset):
        content.update(json.dumps(row, default=str).encode())
    return content.hexdigest()[:16]


def _rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield rows without decoding images; NaN and the class -1 are missing values."""
    names = {
        column: feature.names
        for column, feature in dataset.features.items()
        if getattr(feature, "names", None)
    }
    for batch in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
        for row in batch.to_pylist():
            for column, classes in names.items():
                number = row[column]
                row[column] = None if number is None or number < 0 else classes[number]
            yield {n: value if value == value else None for n, value in row.items()}  # noqa: PLR0124


def _opened(path: str) -> Any:
    reference = REFERENCE.fullmatch(path)
    if path.startswith("hf:") and reference is None:
        raise ConfigError(f"{path!r:.80} is not a data set of the hub; give {FORM}.")
    with installed_for(path, "hub"):
        import datasets
        from datasets.exceptions import DatasetsError
    try:
        if reference is None:
            opened = datasets.load_from_disk(path)
        else:
            opened = datasets.load_dataset(
                reference["name"],
                reference["subset"],
                revision=reference["revision"],
                split=reference["split"],
            )
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = f"{str(error).strip().partition(chr(10))[0]:.200}"
        raise DataError(
            f"{path} cannot be read ({reason}); give {FORM} of a data set that you may read, or a "
            "folder that datasets.save_to_disk wrote whole."
        ) from error
    if isinstance(opened, dict) and TRAIN not in opened:
        how = "its folder" if reference is None else f"it, as {path}:NAME"
        raise DataError(
            f"{path} has the splits {', '.join(map(str, opened))} and none named {TRAIN}; "
            f"name {how}."
        )
    return opened[TRAIN] if isinstance(opened, dict) else opened
