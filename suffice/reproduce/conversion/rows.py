"""The rows of the table of conversions, and their files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suffice.convert.certificate import LossChange
from suffice.errors import DataError
from suffice.measure.decode import decode
from suffice.reproduce.published import path_of, write_published

STORE = "conversion"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One conversion of one model.

    Args:
        subject: name of the model.
        target: what its attention became.
        refused: why it could not; "" where it could.
        state: numbers kept of each token and layer, before and after.
        parameters: of all attention layers, before and after.
        naive: from the model to the usual start; None where it was refused, as below.
        closed: from the model to the closed form.
        healed: from the model to that after healing.
        control: from the model to the model after as many steps on the same rows.
        against_control: from the control to the healed one.
        budget: minutes of healing that were given.
        minutes: of healing, and of the control.
        steps: of healing, and of the control.
        tokens: that were learned from.
        machine: facts about it.
        versions: of the software.
        commit: of the source.
    """

    subject: str
    target: str
    refused: str = ""
    state: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    naive: LossChange | None = None
    closed: LossChange | None = None
    healed: LossChange | None = None
    control: LossChange | None = None
    against_control: LossChange | None = None
    budget: float = 0.0
    minutes: tuple[float, ...] = ()
    steps: int = 0
    tokens: int = 0
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None

    @property
    def key(self) -> tuple[str, str]:
        """What it is a row of."""
        return self.subject, self.target


@dataclass(frozen=True, kw_only=True)
class Conversions:
    """The rows that are there.

    Args:
        rows: in the order of the table.
    """

    rows: tuple[Row, ...]


def place(folder: Path, subject: str, target: str) -> Path:
    """Return the file of a row in a working folder."""
    return folder / "rows" / f"{subject}-{re.sub(r'[^a-z0-9]+', '-', target)}.json"


def finished(folder: Path, keys: Sequence[tuple[str, str]]) -> Conversions:
    """Read the rows of a working folder, and of the published file where the folder has none.

    Raises:
        DataError: if a file is truncated or altered.
    """
    kept = {row.key: row for row in published().rows}
    found = []
    for key in keys:
        path = place(folder, *key)
        if path.exists():
            found.append(_read(Row, path))
        elif key in kept:
            found.append(kept[key])
    return Conversions(rows=tuple(found))


def published() -> Conversions:
    """Return the rows that come with the package; none if there are none.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path = path_of(STORE)
    return _read(Conversions, path) if path.exists() else Conversions(rows=())


def publish(found: Conversions) -> Path:
    """Write the rows that come with the package and return their file.

    Raises:
        DataError: if the package is not a checkout that can be written.
    """
    return write_published(STORE, asdict(found))


def _read(record: Callable[..., Any], path: Path) -> Any:
    """Read a record, or say what is wrong with its file."""
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it to convert again.") from error
    return decode(record, given, where=str(path))
