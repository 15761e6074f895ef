"""The manifest of an exported model: files with sha256, inputs and outputs, tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from suffice.errors import CheckpointError
from suffice.utils.files import check_links, parse_json

MANIFEST = "manifest.json"
CONTENT, VERSION = "suffice export", 1
MAX_BYTES = 1 << 24  # of a manifest
WRITTEN = ("hf", "onnx")
FORMATS = (*WRITTEN, "torch")  # archives of torch were written by earlier versions
# dtypes of ports and ONNX Runtime's names for them
TYPES = {"int64": "tensor(int64)", "bool": "tensor(bool)", "float32": "tensor(float)"}


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; raise CheckpointError if `suffice export` wrote none."""
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"{folder} holds no {MANIFEST}; give a folder that `suffice export` wrote."
        )
    check_links(folder)
    try:
        with path.open("rb") as file:
            manifest = parse_json(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error!s:.200}); export the model again."
        ) from error
    if problem := next(_problems(manifest), None):
        raise CheckpointError(f"{path} cannot be used: {problem}; export the model again.")
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise CheckpointError for the first file that is absent or differs from its digest."""
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; copy the exported folder whole.")
        try:
            sha256 = digest(path)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); check its permissions."
            ) from error
        if sha256 != entry.get("sha256"):
            raise CheckpointError(
                f"{path} is not the file that was exported (its sha256 differs); copy the folder "
                "again, or export the model again."
            )


def _problems(manifest: Any) -> Iterator[str]:
    """Yield each reason why a manifest cannot be used; later checks rely on earlier ones."""
    if not isinstance(manifest, dict) or manifest.get("content") != CONTENT:
        yield "it is not one of `suffice export`"
    if manifest.get("version") != VERSION:
        yield f"its version is {manifest.get('version')!r:.20}, and {VERSION} is read"
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        yield "it lists no files"
    elif strange := [name for name in files if not _is_plain(name)]:
        yield f"it names {strange[0]!r:.60}, which is not a file of the folder"
    form, model = manifest.get("format"), manifest.get("model")
    if form not in FORMATS or not isinstance(model, str):
        yield f"it describes a {model!r:.40} in the format {form!r:.40}"
    for name in ("length", "reach"):
        if not _is_count(manifest.get(name), minimum=1):
            yield f"its {name} is {manifest[name]!r:.40}"
    if manifest.get("tokenizer") is not None:
        yield from _tokenizer_problems(manifest["tokenizer"], files)
    if form != "hf":
        yield from _graph_problems(manifest)


def _tokenizer_problems(entry: Any, files: dict[str, Any]) -> Iterator[str]:
    if not isinstance(entry, dict) or not _is_listed(entry.get("file"), files):
        yield "its tokenizer is not a file that it lists"
    if not all(_is_count(entry.get(name), minimum=0) for name in ("begin", "end")):
        yield "its tokenizer's begin or end token is not a valid id"


def _graph_problems(manifest: dict[str, Any]) -> Iterator[str]:
    if not _is_listed(manifest.get("graph"), manifest["files"]):
        yield "its graph is not a file that it lists"
    for name in ("inputs", "outputs"):
        ports = manifest.get(name)
        if not isinstance(ports, list) or not all(map(_is_port, ports)):
            yield f"its {name} are not described"
    inputs = {port["name"] for port in manifest["inputs"]}
    outputs = {port["name"] for port in manifest["outputs"]}
    states = [port["becomes"] for port in manifest["inputs"] if "becomes" in port]
    if len(outputs.intersection(states)) < len(states):
        yield "an input of its state has no matching output"
    if states and not (inputs >= {"tokens", "valid"} and "logits" in outputs):
        yield "its graph lacks the inputs tokens and valid, or the output logits"


def _is_plain(name: str) -> bool:
    plain = PurePosixPath(name).name == PureWindowsPath(name).name == name
    return plain and "\0" not in name


def _is_listed(name: object, files: dict[str, Any]) -> bool:
    return isinstance(name, str) and name in files


def _is_count(value: object, *, minimum: int) -> bool:
    return value is None or (type(value) is int and value >= minimum)


def _is_port(port: object) -> bool:
    if not isinstance(port, dict) or not isinstance(port.get("shape"), list):
        return False
    names = [port.get("name"), port.get("dtype"), port.get("becomes", "")]
    return all(isinstance(name, str) for name in names) and port["dtype"] in TYPES
