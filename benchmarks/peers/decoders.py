"""Other programs that run the same language models, and the comparison with them.

A peer reads our weights, must give our logits, and then writes in the same rounds as we do.
Letters: B rows, T tokens, n new tokens, V vocabulary.
"""

from __future__ import annotations

import importlib
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.contest import Absent
from benchmarks.peers.installed import package
from suffice.choose.bench import Writer
from suffice.errors import ConfigError, StateError, UnsupportedError, unknown
from suffice.generate import Rates
from suffice.generate.generate import rates_of
from suffice.memory import Memory
from suffice.models import LM
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec import AttentionSpec

MODULES = {
    "llama.cpp": "llama_cpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "transformers": "llama",
    "onnxruntime": "onnx_runtime",
    "openvino": "openvino",
}
PACKAGES = {  # modules to import, by the name pip knows
    "llama.cpp": {"llama-cpp-python": "llama_cpp"},
    "ik_llama.cpp": {"ik-llama-cpp-python": "ik_llama_cpp"},
    "transformers": {"transformers": "transformers"},
    "onnxruntime": {"onnxruntime": "onnxruntime", "onnx": "onnx", "onnx_ir": "onnx_ir"},
    "openvino": {"openvino": "openvino"},
}
PARAMETERS = {  # of a block of our models, by the short names used here
    **{name: f"attention.{name}_proj" for name in "qkvo"},
    **{name: f"mlp.{name}" for name in ("gate", "up", "down")},
    **{name: name for name in ("attention_norm", "mlp_norm")},
}
WARM_UP, CHECKED, FOLLOWING = 8, 24, 8  # tokens
FEWEST = 5  # rounds of a session whose time is up
# relative error of logits, by bits of the weights: a 16-bit cache, and rounding that adds up
TOLERANCES = {32: 1e-2, 16: 2e-2, 8: 0.2, 4: 0.8}


@dataclass(frozen=True, kw_only=True)
class Run(Rates):
    """The times of one text, with its tokens."""

    tokens: tuple[int, ...]


def run_of(tokens: Sequence[int], prompt: int, ticks: Sequence[float]) -> Run:
    """Return the run of a start time and the time at which each token was there."""
    if len(tokens) < 2:
        raise ConfigError(f"{len(tokens)} new tokens have no rate; write at least 2.")
    return Run(tokens=tuple(tokens), **vars(rates_of(prompt, ticks)))


class Decoder(Protocol):
    """A model that writes text and measures how long each token takes."""

    name: str
    clock: Callable[[], float]

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the n likeliest tokens after a prompt [T] or prompts [B, T], n at least 2."""

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits [n + 1, V] after a prompt [T] and after each following token [n]."""


class Ours(Writer):
    """A model of this package, which writes as the others do."""

    def __init__(
        self,
        lm: LM,
        memory: Memory | None = None,
        name: str = "suffice",
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(lm, memory, clock)
        self.name = name

    def write(self, prompt: Tensor, new: int) -> Run:  # type: ignore[override]
        """Write the n likeliest tokens; the run has those of the first row."""
        tokens: list[int] = []
        rates = super().write(prompt, new, lambda row: tokens.append(row[0]))
        return Run(tokens=tuple(tokens), **vars(rates))

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits [n + 1, V] after a prompt [T] and after each following token [n]."""
        state = self.lm.state(self.memory)
        with torch.inference_mode():
            logits = [self.lm(prompt[None], state=state)[0, -1]]
            logits += [self.lm(token.view(1, 1), state=state)[0, -1] for token in following]
        return torch.stack(logits)


class GreedyPeer(ABC):
    """A peer that reads tokens and returns logits; the choice of the next token is ours."""

    name: str
    clock = staticmethod(perf_counter)

    @abstractmethod
    def reset(self) -> None:
        """Empty the KV cache."""

    @abstractmethod
    def read(self, ids: np.ndarray) -> np.ndarray:
        """Return the logits [B, V] after ids [B, T], which the next call may overwrite."""

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens after a prompt; the run has those of the first row."""
        ids, tokens = torch.atleast_2d(prompt).numpy(), []
        self.reset()
        ticks = [self.clock()]
        for _ in range(new):
            ids = self.read(ids).argmax(1)[:, None]
            tokens.append(int(ids[0, 0]))
            ticks.append(self.clock())
        return run_of(tokens, prompt.shape[-1], ticks)

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits after the prompt and after each token that follows it."""
        self.reset()
        pieces = [prompt, *following.split(1)]
        return torch.stack([torch.tensor(self.read(piece[None].numpy())[0]) for piece in pieces])


def check_installed(name: str) -> None:
    """Raise unless the packages of a peer can be imported.

    Raises:
        ConfigError: for an unknown peer.
        Absent: for one that is not installed.
    """
    if name not in MODULES:
        raise unknown("peer", name, MODULES)
    for known, module in PACKAGES[name].items():
        package(known, module)


def peer(name: str, lm: LM, *, bits: int, room: int, folder: Path, rows: int = 1) -> Decoder:
    """Return a peer with the weights of a model.

    Args:
        name: see `MODULES`.
        lm: a Llama-like model in 32 bits.
        bits: of the peer's weights, which it rounds itself: 32, 16, 8 or 4.
        room: tokens of prompt and text.
        folder: for the files it reads.
        rows: texts written at once.

    Raises:
        Absent: if a package is not installed.
        ConfigError: if the model is not a plain Llama.
        UnsupportedError: if the peer has no such bits here.
    """
    check_llama(lm)
    module = importlib.import_module(f"benchmarks.peers.{MODULES[name]}")
    if bits not in module.BITS:
        raise UnsupportedError(
            f"{name} has no weights of {bits} bits on a CPU; ask for "
            f"{' or '.join(map(str, module.BITS))}."
        )
    return module.make(lm, bits=bits, room=room, folder=folder, rows=rows)


def check_llama(lm: LM) -> None:
    """Refuse models that the peers have no code for.

    Raises:
        ConfigError: naming each difference from a Llama.
    """
    config, spec = lm.config, lm.specs[0]
    weight = getattr(lm.embedding.tokens, "weight", None)  # packed embeddings have none
    plain = AttentionSpec(
        d_model=config.d_model,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        pattern=Causal(),
        position=Rope(),
        bias=False,
    )
    facts = {
        "standard causal attention with Rope() in each layer": all(s == plain for s in lm.specs),
        "SwiGLU": config.activation == "swiglu",
        "RMS norms": config.norm == "rms",
        "no biases": not config.bias,
        "no positions beside Rope()": config.positions == "none",
        "weights of 32 bits": weight is not None and weight.dtype is torch.float32,
    }
    missing = [name for name, holds in facts.items() if not holds]
    if missing:
        raise ConfigError(
            f"peers run plain Llamas, which have {' and '.join(missing)}; this model has not."
        )


def layers(lm: LM) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of each layer: q, k, v, o, gate, up, down and both norms."""
    for block in lm.blocks:
        state = block.state_dict()
        yield {name: state[f"{path}.weight"] for name, path in PARAMETERS.items()}


def head(lm: LM) -> Tensor:
    """Return the weight of the head [V, d_model]."""
    return (lm.embedding.tokens if lm.head is None else lm.head).weight.detach()


def relative_error(ours: Decoder, theirs: Decoder, ids: Tensor) -> float:
    """Return the relative error of a peer's logits, some after a prefill, some after single steps.

    Args:
        ours: the reference.
        theirs: the peer.
        ids: a prompt [T].
    """
    first = ids[: min(CHECKED, len(ids) - 1)]
    rest = ids[len(first) :][:FOLLOWING]
    expected, actual = (side.logits(first, rest).double() for side in (ours, theirs))
    return ((actual - expected).norm() / expected.norm()).item()


def check_alike(ours: Decoder, theirs: Decoder, ids: Tensor, bits: int = 32) -> None:
    """Refuse to time a peer that computes something else.

    Args:
        ours: a model in 32 bits.
        theirs: the peer.
        ids: a prompt [T].
        bits: of the peer's weights.

    Raises:
        StateError: if its logits are not ours.
    """
    tolerance = TOLERANCES[bits]
    with torch.inference_mode():
        error = relative_error(ours, theirs, ids)
    if not error <= tolerance:
        raise StateError(
            f"{theirs.name}: the relative error of its logits is {error:.1e}, more than "
            f"{tolerance:.0e}, with the weights of {ours.name}; nothing is timed. Compare the "
            "versions of both."
        )


def session(
    sides: list[Decoder],
    ids: Tensor,
    new: int,
    rounds: int,
    *,
    seconds: float = inf,
    each_round: Callable[[], object] = lambda: None,
) -> dict[str, list[Run]]:
    """Let each side write once a round, in an order that rotates.

    Args:
        sides: of different names.
        ids: the prompt [T] or prompts [B, T].
        new: tokens each writes, at least 2.
        rounds: texts of each at most.
        seconds: after which no further round begins, once there are `FEWEST`.
        each_round: called before each round.
    """
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for side in sides:
        side.write(ids, min(new, WARM_UP))
    end = perf_counter() + seconds
    for number in range(rounds):
        if number >= FEWEST and perf_counter() > end:
            break
        each_round()
        shift = number % len(sides)
        for side in sides[shift:] + sides[:shift]:
            runs[side.name].append(side.write(ids, new))
    return runs


def gain(ours: list[Run], theirs: list[Run], rate: str) -> float:
    """Return our rate ("prefill" or "decode") over theirs, the median over the rounds."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(getattr(a, rate) / getattr(b, rate) for a, b in pairs)


__all__ = ["Absent", "Decoder", "GreedyPeer", "check_alike", "check_installed", "gain", "peer"]
