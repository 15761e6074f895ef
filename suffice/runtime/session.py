"""A language model in ONNX Runtime, read token by token.

Letters: B batch, T new tokens, P earlier ones, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.runtime.manifest import MANIFEST, TYPES


class Session:
    """An exported language model and the text it has read.

    Args:
        folder: of the export.
        manifest: of the folder, checked.

    Raises:
        ConfigError: if onnxruntime is not installed, or the model reads no text.
        CheckpointError: if the file is no graph that the runtime takes, or has other inputs and
            outputs than the manifest says.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.state = check_state(folder, manifest)
        self.outputs = [port["name"] for port in manifest["outputs"]]
        self.runs = _opened(folder / manifest["graph"])
        for name, ports in (
            ("inputs", self.runs.get_inputs()),
            ("outputs", self.runs.get_outputs()),
        ):
            told = [(one["name"], TYPES[one["dtype"]], one["shape"]) for one in manifest[name]]
            if [(one.name, one.type, one.shape) for one in ports] != told:
                raise CheckpointError(
                    f"{folder} has a graph whose {name} are not those of its {MANIFEST}; export "
                    "the model again."
                )

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the graph for its inputs."""
        return self.runs.run(self.outputs, feeds)


def check_state(folder: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ports of a state.

    Raises:
        ConfigError: if the model has none, so that it writes no text.
    """
    state = [port for port in manifest["inputs"] if "becomes" in port]
    if not state:
        raise ConfigError(
            f"{folder} holds a {manifest['model']}, which writes no text; call its graph with the "
            "inputs that manifest.json names."
        )
    return state


def _opened(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            "running an ONNX export needs onnxruntime; install it with "
            "pip install 'suffice[export]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime's errors have no base of their own
        told = " ".join(str(error).split())
        raise CheckpointError(
            f"{path} is no graph that this ONNX Runtime takes ({told:.200}); install a newer one, "
            "or export the model again."
        ) from error


class Words:
    """The tokenizer of an exported model.

    Args:
        folder: of the export.
        manifest: of the folder, checked.

    Raises:
        ConfigError: if the model has no tokenizer, or the tokenizers library is not installed.
        CheckpointError: if its file is none that the library reads.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        told = manifest.get("tokenizer")
        if told is None:
            raise ConfigError(
                f"{folder} has no tokenizer, so no text can be read; call its graph with ids."
            )
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(
                "reading text needs the tokenizers library; install it with "
                "pip install 'suffice[export]'."
            ) from error
        path = folder / told["file"]
        try:
            self._library = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise CheckpointError(f"{path} is no tokenizer ({error!s:.200}).") from error
        self.size = self._library.get_vocab_size()
        self.begin, self.end = told.get("begin"), told.get("end")

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, the token that begins a text before it.

        Raises:
            ConfigError: if the prompt is empty and no token begins a text.
            DataError: if it holds what no token spells.
        """
        try:
            found = self._library.encode(prompt, add_special_tokens=False).ids
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise DataError(
                f"the prompt holds what the tokenizer cannot spell ({error!s:.120}); write it "
                "with the characters the model was trained on."
            ) from error
        ids = [*([] if self.begin is None else [self.begin]), *found]
        if not ids and self.end is not None:
            return [self.end]  # what stands before a text stands behind another
        if not ids:
            raise ConfigError("--prompt is empty, and no token begins a text here; give some text.")
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids; special tokens show as their names.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
        if wrong := [id_ for id_ in ids if not 0 <= id_ < self.size]:
            raise ConfigError(
                f"id {wrong[0]} is not in the vocabulary; the tokenizer has ids of 0 to "
                f"{self.size - 1:,}."
            )
        return self._library.decode(ids, skip_special_tokens=False)


class Stepper(Protocol):
    """What runs a graph.

    Attributes:
        state: ports of the state as the manifest lists them.
        outputs: names of what `call` returns.
    """

    state: list[dict[str, Any]]
    outputs: list[str]

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the graph for its inputs."""


def write(
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
    """Return the ids that follow a prompt, a stop id left out.

    Args:
        session: runs the graph.
        manifest: of the export.
        ids: of the prompt, at least one.
        tokens: to write at most.
        temperature: below 1 is bolder towards likely tokens; 0 takes the likeliest.
        seed: of the draws.
        stop: ids that end a text.
        on_token: told each token as it is written.

    Raises:
        ConfigError: for numbers outside their range, or more tokens than the model reaches.
    """
    _check(manifest, len(ids), tokens, temperature, seed)
    state = {port["name"]: _empty(port) for port in session.state}
    next_name = {port["becomes"]: port["name"] for port in session.state}
    draws = np.random.default_rng(seed)
    written: list[int] = []
    piece = np.asarray([ids], dtype=np.int64)
    while len(written) < tokens:
        feeds = {"tokens": piece, "valid": np.ones_like(piece, dtype=bool), **state}
        found = dict(zip(session.outputs, session.call(feeds), strict=True))
        token = _chosen(found["logits"][0, -1], temperature, draws)
        if token in stop:
            break
        written.append(token)
        on_token(token)
        state = {next_name[name]: found[name] for name in next_name}
        state = {name: _latest(state[name], manifest.get("reach")) for name in state}
        piece = np.asarray([[token]], dtype=np.int64)
    return written


def _check(
    manifest: dict[str, Any], prompt: int, tokens: int, temperature: float, seed: int
) -> None:
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens}: give at least 1.")
    if not 0.0 <= temperature < float("inf"):
        raise ConfigError(f"--temperature {temperature}: give 0 or a number above it.")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: give at least 0.")
    longest = manifest.get("length")
    if longest is not None and prompt + tokens - 1 > longest:
        raise ConfigError(
            f"a prompt of {prompt} and {tokens} new tokens need {prompt + tokens - 1} positions of "
            f"a model that has {longest}; ask for fewer tokens, or cut the prompt."
        )


def _empty(port: dict[str, Any]) -> np.ndarray:
    """Return a state of one row that has read nothing."""
    free = {"batch": 1, "past": 0}
    return np.zeros([free.get(size, size) for size in port["shape"]], dtype=port["dtype"])


def _latest(held: np.ndarray, reach: int | None) -> np.ndarray:
    """Return what the next token can still see: of [B, P] or [B, G, P, D] the last positions."""
    if reach is None:
        return held
    axis = 1 if held.ndim == 2 else 2  # noqa: PLR2004
    kept = max(reach - 1, 1)  # the last one at least, which tells where the next one stands
    first = max(held.shape[axis] - kept, 0)
    return held[:, first:] if axis == 1 else held[:, :, first:]


def _chosen(logits: np.ndarray, temperature: float, draws: np.random.Generator) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    below = logits.astype(np.float64) - logits.max()  # 0 stays 0, whatever divides it
    with np.errstate(over="ignore"):
        weights = np.exp(below / temperature)
    return int(draws.choice(len(weights), p=weights / weights.sum()))
