"""Results on disk: one JSON file per finished cell, so that a stopped comparison goes on.

A file is written beside its place, synced and renamed: it is there whole or not at all. A cell
file carries the sha256 of its content, so that an edit by hand is noticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from urllib.parse import quote

from suffice.errors import DataError
from suffice.files import replacing
from suffice.measure.decode import decode, encode
from suffice.measure.results import Cell, Results

RETRAIN = "Delete this file; its model will be trained again."
RERUN = "Compare again with --resume to write it anew."


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or as it was before.

    Args:
        path: where; missing folders are made.
        content: text (written as UTF-8) or bytes.

    Raises:
        DataError: if the place cannot be written or the disk is full.
    """
    # half a surrogate, as in a path that is not UTF-8, becomes JSON's own escape
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; "
            "make room or choose another folder with --out."
        ) from error


def cell_path(folder: Path, mechanism: str, num_heads: int, seed: int) -> Path:
    """Return where a cell lies below the folder of its comparison.

    Example:
        >>> cell_path(Path("run"), "my/own", 4, 0).as_posix()
        'run/cells/my%2Fown-h4-s0.json'
    """
    return folder / "cells" / f"{quote(mechanism, safe='')}-h{num_heads}-s{seed}.json"


def write_cell(folder: Path, cell: Cell) -> Path:
    """Write one finished cell and return its file.

    Raises:
        DataError: if it cannot be written.
    """
    path = cell_path(folder, *cell.key)
    content = encode(dataclasses.asdict(cell))
    write_atomic(path, _dump({"sha256": _sha256(content), "cell": content}))
    return path


def read_cell(folder: Path, mechanism: str, num_heads: int, seed: int) -> Cell | None:
    """Read one finished cell; None if it was not written yet.

    Raises:
        DataError: if the file is truncated, altered or another cell's.
    """
    path = cell_path(folder, mechanism, num_heads, seed)
    if not path.exists():
        return None
    given = _load(path, RETRAIN)
    if not isinstance(given, dict) or set(given) != {"sha256", "cell"}:
        raise DataError(f"{path} is not a cell file: it must hold sha256 and cell. {RETRAIN}")
    if given["sha256"] != _sha256(given["cell"]):
        raise DataError(f"{path} was altered: its content does not match its sha256. {RETRAIN}")
    try:
        cell = decode(Cell, given["cell"], where=str(path))
    except DataError as error:
        raise DataError(f"{error} {RETRAIN}") from error
    if cell.key != (mechanism, num_heads, seed):
        raise DataError(
            f"{path} holds mechanism {cell.mechanism!r}, {cell.num_heads} heads, seed {cell.seed}, "
            f"which is not what its name says. {RETRAIN}"
        )
    return cell


def write_results(path: Path, results: Results) -> None:
    """Write the whole comparison to one JSON file.

    Raises:
        DataError: if it cannot be written.
    """
    write_atomic(path, _dump(results.to_json()))


def read_results(path: Path) -> Results:
    """Read a whole comparison.

    Raises:
        DataError: if the file is absent, truncated or altered.
    """
    return Results.from_json(_load(path, RERUN), where=str(path))


def _load(path: Path, advice: str) -> object:
    """Read JSON, or say what is wrong with the file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or not JSON ({error}). {advice}") from error


def _dump(content: object) -> str:
    """Write JSON that any reader accepts, one key per line."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sha256(content: object) -> str:
    """Digest a JSON value, whatever its layout in the file."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
