"""The manifest of an exported model: what its files are, and whether they still are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

from suffice.errors import CheckpointError

MANIFEST = "manifest.json"
CONTENT, VERSION = "suffice export", 1
LONGEST = 1 << 24  # bytes of a manifest
PIECE = 1 << 20  # bytes read at once
FORMATS = ("hf", "onnx", "torch")
READ, WRITTEN = {"tokens", "valid"}, "logits"
TYPES = {"int64": "tensor(int64)", "bool": "tensor(bool)", "float32": "tensor(float)"}
"""Types of numbers and what ONNX Runtime calls them."""


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder.

    Raises:
        CheckpointError: if there is none, or it is not one that `suffice export` wrote.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no {MANIFEST}; give a folder that `suffice export` wrote."
        )
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error!s:.200}); export the model again."
        ) from error
    if not isinstance(found, dict) or found.get("content") != CONTENT:
        _refuse(path, "it is not one of `suffice export`")
    if found.get("version") != VERSION:
        _refuse(path, f"its version is {found.get('version')!r:.20}, and {VERSION} is read")
    files = found.get("files")
    if not isinstance(files, dict) or not all(isinstance(one, dict) for one in files.values()):
        _refuse(path, "it lists no files")
    for name in files:
        if not PurePosixPath(name).name == PureWindowsPath(name).name == name:
            _refuse(path, f"it names {name!r:.60}, which is no file of the folder")
    if odd := next(_odd(found), None):
        _refuse(path, odd)
    return found


def _odd(told: dict[str, Any]) -> Iterator[str]:
    """Give what a manifest says that no export does."""
    form, files = told.get("format"), told["files"]
    if form not in FORMATS or not isinstance(told.get("model"), str):
        yield f"it is of a {told.get('model')!r:.40} in {form!r:.40}"
    for name in ("length", "reach"):
        if not _is_count(told.get(name), least=1):
            yield f"its {name} is {told[name]!r:.40}"
    words = told.get("tokenizer")
    if words is not None:
        if not isinstance(words, dict) or not _is_listed(words.get("file"), files):
            yield "its tokenizer is no file that it lists"
        elif not all(_is_count(words.get(name), least=0) for name in ("begin", "end")):
            yield "its tokenizer begins or ends a text by what is no id"
    if form != "hf":
        yield from _odd_graph(told)


def _odd_graph(told: dict[str, Any]) -> Iterator[str]:
    if not _is_listed(told.get("graph"), told["files"]):
        yield "its graph is no file that it lists"
    for name in ("inputs", "outputs"):
        if not isinstance(told.get(name), list) or not all(map(_is_port, told[name])):
            yield f"its {name} are not told"
            return
    given = {port["name"] for port in told["outputs"]}
    states = {port["name"]: port["becomes"] for port in told["inputs"] if "becomes" in port}
    if len(set(states.values()) & given) < len(states):
        yield "a state of it becomes no output of its own"
    if states and not ({port["name"] for port in told["inputs"]} >= READ and WRITTEN in given):
        yield f"it reads no {' and '.join(sorted(READ))}, or gives no {WRITTEN}"


def _is_listed(name: object, files: dict[str, Any]) -> bool:
    return isinstance(name, str) and name in files


def _is_count(value: object, *, least: int) -> bool:
    return value is None or (type(value) is int and value >= least)


def _is_port(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("shape"), list):
        return False
    names = [one.get("name"), one.get("dtype"), one.get("becomes", "")]
    return all(isinstance(name, str) for name in names) and one["dtype"] in TYPES


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a folder whose files are not those that were exported.

    Raises:
        CheckpointError: naming the first that is absent or differs.
    """
    for name, told in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; copy the exported folder whole.")
        try:
            found = digest(path)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); check its rights."
            ) from error
        if found != told.get("sha256"):
            raise CheckpointError(
                f"{path} is not the file that was exported (its sha256 differs); copy the folder "
                "again, or export the model again."
            )


def _refuse(path: Path, why: str) -> NoReturn:
    raise CheckpointError(f"{path} cannot be used: {why}; export the model again.")
