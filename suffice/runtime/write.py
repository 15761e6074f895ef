"""Writing text with an exported model: the prompt at once, then token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from suffice.errors import ConfigError


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
