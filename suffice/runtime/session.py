"""Generates text with an exported language model in ONNX Runtime, token by token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from suffice.errors import CheckpointError, ConfigError, DataError, installed_for
from suffice.runtime.manifest import MANIFEST, TYPES

EXTRA = "export"


class Stepper(Protocol):
    """An opened graph."""

    state: list[dict[str, Any]]  # ports of its state, as the manifest lists them
    outputs: list[str]  # names, in the order of `call`

    def call(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for inputs by name."""


class Session:
    """An exported language model, opened in ONNX Runtime.

    Args:
        folder: folder of the export.
        manifest: manifest of the folder, as `read` returns it.

    Raises:
        ConfigError: if onnxruntime is not installed, or the model generates no text.
        CheckpointError: if the runtime does not accept the graph, or its ports are not those of
            the manifest.
    """

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
        """Return the outputs for inputs by name."""
        return self.graph.run(self.outputs, feeds)


def open_graph(path: Path) -> Any:
    """Return the session of ONNX Runtime that runs a graph on the CPU.

    Raises:
        ConfigError: if onnxruntime is not installed.
        CheckpointError: if it does not accept the graph; names the operator that it lacks.
    """
    with installed_for("running an ONNX export", EXTRA):
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
    """The tokenizer of an exported model.

    Args:
        folder: folder of the export.
        manifest: manifest of the folder, as `read` returns it.

    Raises:
        ConfigError: if the model has no tokenizer, or the tokenizers library is not installed.
        CheckpointError: if the library cannot read its file.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        entry = manifest.get("tokenizer")
        if entry is None:
            raise ConfigError(
                f"{folder} has no tokenizer, so no text can be read; call its graph with ids."
            )
        with installed_for("reading text", EXTRA):
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

        Raises:
            DataError: if it holds characters that no token spells.
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
        """Return the text of ids; special tokens show as their names.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
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
        session: the opened graph.
        manifest: manifest of the export.
        ids: ids of the prompt.
        tokens: number of new tokens.
        temperature: divisor of the logits; 0 takes the most likely token.
        seed: seed of the draws.
        stop: ids that end a text.
        on_token: function called with each new token.

    Raises:
        ConfigError: for numbers outside their range, or more tokens than the model has positions.
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
