"""The loop of greedy choice around a peer that gives logits for tokens."""

from __future__ import annotations

from abc import abstractmethod
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from suffice.measure.edge.run import Run, Side, run_of


class Greedy(Side):
    """A peer that reads tokens and gives the logits behind the last one."""

    @abstractmethod
    def begin(self) -> None:
        """Forget what was read."""

    @abstractmethod
    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read ids [T] and return the logits [V] behind them, which the next call may overwrite."""

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens behind a prompt."""
        ids, tokens = prompt.numpy(), []
        self.begin()
        ticks = [perf_counter()]
        for _ in range(new):
            tokens.append(int(self.read(ids).argmax()))
            ticks.append(perf_counter())
            ids = np.array(tokens[-1:])
        return run_of(tokens, len(prompt), ticks)

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits behind the prompt and behind each token after it."""
        self.begin()
        pieces = [prompt, *following.split(1)]
        return torch.stack([torch.tensor(self.read(piece.numpy())) for piece in pieces])
