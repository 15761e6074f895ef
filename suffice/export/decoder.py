"""A language model as a function of flat tensors: tokens and a past in, logits and a past out.

Letters: B batch, T new tokens, P earlier ones, V vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.export.plain import Places, Plain, held
from suffice.models import LM

TOKENS, VALID, LOGITS, PLACES = "tokens", "valid", "logits", "places"
TYPES = {torch.int64: "int64", torch.bool: "bool", torch.float32: "float32"}


@dataclass(frozen=True, kw_only=True)
class Port:
    """One input or output.

    Args:
        name: in the graph.
        dtype: of its numbers.
        shape: sizes, a name where it is free; free sizes of one name are equal.
        holds: what it is.
        becomes: of a state, the output that is this input of the next call.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    holds: str
    becomes: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the port as plain data."""
        told: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        told["dynamic_axes"] = {
            str(axis): size for axis, size in enumerate(self.shape) if isinstance(size, str)
        }
        told["holds"] = self.holds
        return told | ({"becomes": self.becomes} if self.becomes else {})


class Decoder(nn.Module):
    """An LM with plain attention whose state is a list of tensors.

    Args:
        lm: in evaluation and float32; it is copied.

    Shapes:
        tokens: int [B, T]; valid: bool [B, T], True = a real token; places: int [B, P], where the
        earlier tokens stand, -1 = padding; past: tensors [B, G, P, D] -> logits [B, T, V], then
        places and past with the new tokens behind the earlier ones

    Raises:
        ConfigError: if no graph can hold a layer.
    """

    def __init__(self, lm: LM) -> None:
        super().__init__()
        self.lm = copy.deepcopy(lm)
        self.kept = []
        for number, block in enumerate(self.lm.blocks):
            try:
                self.kept.append(held(block.attention.spec))
            except ConfigError as error:
                raise ConfigError(f"layer {number}: {error}") from error
            block.attention = Plain(block.attention)

    def forward(
        self, tokens: Tensor, valid: Tensor, places: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return logits, places and the past."""
        tokens = tokens.masked_fill(~valid, 0)
        # a maximum needs something to choose from, and there may be no past
        first = torch.full_like(tokens[:, :1], -1)
        read = torch.cat([first, places], dim=1).amax(dim=1) + 1
        real = valid.long()
        at = read[:, None] + real.cumsum(dim=1) - real
        known = torch.cat([places, at.masked_fill(~valid, -1)], dim=1)
        where = Places(at, known, valid)
        x = self._embedded(tokens, at)
        parts, kept = iter(past), []
        for block, names in zip(self.lm.blocks, self.kept, strict=True):
            own = tuple(next(parts) for _ in names)
            seen, own = block.attention.step(block.attention_norm(x), where, own)
            x = x + seen
            x = x + block.mlp(block.mlp_norm(x))
            kept += own
        return self.lm.logits(self.lm.norm(x)), known, *kept

    def _embedded(self, tokens: Tensor, at: Tensor) -> Tensor:
        embedding = self.lm.embedding
        x = embedding.tokens(tokens)
        return x if embedding.adds == "none" else x + embedding._at(at, x)

    def inputs(self) -> list[Port]:
        """Return the ports of the inputs, in order."""
        ports = [
            Port(name=TOKENS, dtype="int64", shape=("batch", "chunk"), holds="ids"),
            Port(
                name=VALID,
                dtype="bool",
                shape=("batch", "chunk"),
                holds="True = a real token; padding may stand anywhere and hold any id",
            ),
        ]
        return ports + [
            Port(
                name=f"past.{name}",
                dtype=dtype,
                shape=tuple("past" if size == "total" else size for size in shape),
                holds=holds,
                becomes=f"present.{name}",
            )
            for name, dtype, shape, holds in self._state()
        ]

    def outputs(self) -> list[Port]:
        """Return the ports of the outputs, in order."""
        size = self.lm.config.vocabulary_size
        logits = Port(
            name=LOGITS,
            dtype="float32",
            shape=("batch", "chunk", size),
            holds="at each token, of the one that follows it; at padding they mean nothing",
        )
        return [logits] + [
            Port(name=f"present.{name}", dtype=dtype, shape=shape, holds=holds)
            for name, dtype, shape, holds in self._state()
        ]

    def _state(self) -> list[tuple[str, str, tuple[int | str, ...], str]]:
        told = "position of each token read, -1 = padding"
        found: list[tuple[str, str, tuple[int | str, ...], str]]
        found = [(PLACES, "int64", ("batch", "total"), told)]
        for number, (names, spec) in enumerate(zip(self.kept, self.lm.specs, strict=True)):
            shape = ("batch", spec.kv_heads, "total", spec.head_width)
            found += [(f"{number}.{n}", "float32", shape, n.replace("_", " ")) for n in names]
        return found


def reach(lm: LM) -> int | None:
    """Return how many latest tokens any layer reads, its own included; None = all."""
    reaches = [spec.pattern.reach for spec in lm.specs]
    if any(one is None for one in reaches) or any(spec.mixing.mixes for spec in lm.specs):
        return None
    return max(reaches)
