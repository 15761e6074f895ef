"""The next token of each row, from logits.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.generate.distribution import penalised, pick, probabilities
from suffice.generate.draws import Draws
from suffice.generate.prompts import Prompts
from suffice.generate.sampling import Greedy, Sampling


class Choice:
    """Chooses the next token of each row and remembers what a penalty needs.

    Args:
        sampling: how.
        prompts: what stands in the rows.
        vocabulary_size: V.
        first: number of the first row, for its draws.
    """

    def __init__(
        self, sampling: Sampling, prompts: Prompts, vocabulary_size: int, first: int = 0
    ) -> None:
        self.sampling = sampling
        batch, device = prompts.tokens.shape[0], prompts.tokens.device
        self.draws = None
        if not isinstance(sampling, Greedy):
            self.draws = Draws(sampling.seed, [first + row for row in range(batch)], device)
        self.seen = None
        if sampling.repetition_penalty != 1.0:
            counts = torch.zeros(batch, vocabulary_size, device=device)
            real = torch.ones_like(counts[:, :1]).expand(prompts.tokens.shape)
            if prompts.valid is not None:
                real = prompts.valid.float()
            self.seen = counts.scatter_add_(1, prompts.tokens, real) > 0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the tokens [B] chosen by logits [B, V]."""
        if isinstance(self.sampling, Greedy):
            scores = penalised(logits.float(), self.seen, self.sampling.repetition_penalty)
            tokens = scores.argmax(dim=-1)
        else:
            shares = probabilities(logits, self.sampling, self.seen)
            tokens = pick(shares, self.draws.next())
        self.note(tokens)
        return tokens

    def note(self, tokens: Tensor) -> None:
        """Remember tokens [B] that now stand in the rows."""
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
