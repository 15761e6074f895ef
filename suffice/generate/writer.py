"""What a model must have to be written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from suffice.memory import Memory
from suffice.models.state import ModelState
from suffice.spec import AttentionSpec


class Sizes(Protocol):
    """What is asked of the sizes of a model."""

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""

    @property
    def length(self) -> int:
        """The longest row with learned positions."""

    @property
    def positions(self) -> str:
        """What is added to the tokens for where they stand."""


class Writer(Protocol):
    """A model that goes on from tokens, as `LM` does."""

    config: Sizes
    specs: Sequence[AttentionSpec]
    training: bool

    @property
    def device(self) -> torch.device:
        """Where tokens are read."""

    def state(self, memory: Memory) -> ModelState:
        """Return an empty state."""

    def features(self, tokens: Tensor, *, valid: Tensor | None = None, state: ModelState) -> Tensor:
        """Return what the head reads, [B, T, M], of tokens that go on from a state."""

    def logits(self, features: Tensor) -> Tensor:
        """Return the head's logits."""

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return the logits [B, V] behind one more token [B] of each row."""

    def train(self, mode: bool = True) -> object:
        """Turn dropout on, or off."""
