"""Runs an exported model with ONNX Runtime alone; nothing here imports torch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Protocol

import numpy as np

from suffice.errors import CheckpointError, ConfigError, DataError, installed_for
from suffice.utils.files import check_links, parse_json

__all__ = ["Session", "Tokenizer", "check_files", "generate", "read"]

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


class Stepper(Protocol):
    """An opened graph."""

    state: list[dict[str, Any]]  # ports of its state, as the manifest lists them
    outputs: list[str]  # names, in the order of `call`

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for inputs by name."""


class Session:
    """An exported language model, opened in ONNX Runtime."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.state = [port for port in manifest["inputs"] if "becomes" in port]
        if not self.state:
            raise ConfigError(
                f"{folder} holds a {manifest['model']}, which generates no text; call its graph "
                f"with the inputs that {MANIFEST} names."
            )
        self.outputs = [port["name"] for port in manifest["outputs"]]
        self.graph = open_graph(folder / manifest["graph"])
        for side in ("inputs", "outputs"):
            ports = getattr(self.graph, f"get_{side}")()
            listed = [
                (port["name"], TYPES[port["dtype"]], port["shape"]) for port in manifest[side]
            ]
            if [(port.name, port.type, port.shape) for port in ports] != listed:
                raise CheckpointError(
                    f"{folder} has a graph whose {side} are not those of its {MANIFEST}; export "
                    "the model again."
                )

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self.graph.run(self.outputs, feeds)


def open_graph(path: Path) -> Any:
    """Return the session of ONNX Runtime that runs a graph on the CPU."""
    with installed_for("running an ONNX export", "export"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime's errors share no base class
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path} is not a graph that ONNX Runtime {onnxruntime.__version__} accepts "
            f"({reason:.200}); install a newer one, or export the model again."
        ) from error


class Tokenizer:
    """The tokenizer of an exported model."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        entry = manifest.get("tokenizer")
        if entry is None:
            raise ConfigError(
                f"{folder} has no tokenizer, so no text can be read; call its graph with ids."
            )
        import tokenizers

        path = folder / entry["file"]
        try:
            self._library = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise CheckpointError(f"{path} is not a tokenizer ({error!s:.200}).") from error
        self.size = self._library.get_vocab_size()
        self.begin, self.end = entry.get("begin"), entry.get("end")

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, after the token that begins a text.

        An empty prompt starts as that of `suffice generate`: at a document or behind a line break.
        """
        if not prompt and self.begin is None:
            if self.end is not None:
                return [self.end]  # the end of one text stands before the next
            with contextlib.suppress(DataError):
                return self.ids("\n")
            return [0]
        try:
            encoded = self._library.encode(prompt, add_special_tokens=False).ids
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise DataError(
                f"the prompt holds what the tokenizer cannot spell ({error!s:.120}); write it "
                "with the characters the model was trained on."
            ) from error
        return encoded if self.begin is None else [self.begin, *encoded]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids; special tokens show as their names."""
        if wrong := [id_ for id_ in ids if not 0 <= id_ < self.size]:
            raise ConfigError(
                f"id {wrong[0]} is not in the vocabulary; the tokenizer has ids of 0 to "
                f"{self.size - 1:,}."
            )
        return self._library.decode(ids, skip_special_tokens=False)


def generate(
    session: Stepper,
    manifest: dict[str, Any],
    ids: Sequence[int],
    *,
    tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    stop: Sequence[int] = (),
    on_token: Callable[[int], None] = lambda _token: None,
) -> list[int]:
    """Return at most `tokens` ids that continue a prompt of at least one id, without the stop id.

    Args:
        temperature: divisor of the logits; 0 takes the most likely token.
        stop: ids that end a text.
        on_token: function called with each new token.
    """
    _check_options(manifest, len(ids), tokens, temperature, seed)
    free = {"batch": 1, "past": 0}
    state = {
        port["name"]: np.zeros([free.get(size, size) for size in port["shape"]], port["dtype"])
        for port in session.state
    }
    draws = np.random.default_rng(seed)
    generated: list[int] = []
    chunk = np.asarray([ids], dtype=np.int64)
    while len(generated) < tokens:
        feeds = {"tokens": chunk, "valid": np.ones_like(chunk, dtype=bool), **state}
        outputs = dict(zip(session.outputs, session.call(feeds), strict=True))
        token = _sample(outputs["logits"][0, -1], temperature, draws)
        if token in stop:
            break
        generated.append(token)
        on_token(token)
        state = {
            port["name"]: _crop(outputs[port["becomes"]], port["shape"], manifest.get("reach"))
            for port in session.state
        }
        chunk = np.asarray([[token]], dtype=np.int64)
    return generated


def _check_options(
    manifest: dict[str, Any], prompt: int, tokens: int, temperature: float, seed: int
) -> None:
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens}: give at least 1.")
    if not 0.0 <= temperature < float("inf"):
        raise ConfigError(f"--temperature {temperature}: give 0 or a number above it.")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: give at least 0.")
    length = manifest.get("length")
    if length is not None and prompt + tokens - 1 > length:
        raise ConfigError(
            f"a prompt of {prompt} and {tokens} new tokens need {prompt + tokens - 1} positions of "
            f"a model that has {length}; generate fewer tokens, or shorten the prompt."
        )


def _crop(state: np.ndarray, shape: list[int | str], reach: int | None) -> np.ndarray:
    """Keep the positions that the next token can attend to, along the axis named "past"."""
    if reach is None or "past" not in shape:
        return state
    last = max(reach - 1, 1)  # at least one, which has the position that the next one follows
    return state[(slice(None),) * shape.index("past") + (slice(-last, None),)]


def _sample(logits: np.ndarray, temperature: float, draws: np.random.Generator) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    below = logits.astype(np.float64) - logits.max()  # the largest is 0 at every temperature
    with np.errstate(over="ignore"):
        weights = np.exp(below / temperature)
    return int(draws.choice(len(weights), p=weights / weights.sum()))
