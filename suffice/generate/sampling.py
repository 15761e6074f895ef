"""Choice of the next token: greedy or sampled.

Everything is computed in fp32, in this order: repetition penalty, temperature, top-k, softmax,
top-p and min-p, renormalisation.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.utils.records import check_fields


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The token with the highest logit; of equal ones that with the lowest id."""

    repetition_penalty: float = 1.0  # see `Sample`

    def __post_init__(self) -> None:
        check_fields(self)
        _check_penalty(self)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A token drawn from softmax(logits), modified as follows, in this order.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751
        (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p); Keskar et al. 2019,
        arXiv:1909.05858, section 4.1 (penalty). Differs: the penalty of a negative logit.
    """

    temperature: float = 1.0  # divisor of the logits
    # number k: tokens below the k-th highest logit are left out; None keeps all
    top_k: int | None = None
    # probability that the fewest most probable tokens, which are kept, sum to at least; of equal
    # ones the lowest ids. 1 keeps all.
    top_p: float = 1.0
    # fraction of the highest probability below which tokens are left out; 0 keeps all
    min_p: float = 0.0
    # divisor of positive logits, and factor of negative ones, of tokens that are in the row
    # already; applied first. 1 disables it.
    repetition_penalty: float = 1.0
    seed: int = 0  # row i of a call has its own random numbers, which depend on seed and i alone

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0.0 < self.temperature < math.inf:
            raise ConfigError(
                f"temperature={self.temperature}: give a number above 0; its limit 0 is Greedy(), "
                "on the command line --temperature 0."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: give at least 1, or None for all tokens.")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p={self.top_p}: give a share above 0, at most 1.")
        if not 0.0 <= self.min_p <= 1.0:
            raise ConfigError(f"min_p={self.min_p}: give a share from 0 to 1.")
        _check_penalty(self)


Sampling = Greedy | Sample


def _check_penalty(sampling: Sampling) -> None:
    if not 0.0 < sampling.repetition_penalty < math.inf:
        raise ConfigError(
            f"repetition_penalty={sampling.repetition_penalty}: give a number above 0; 1 changes "
            "nothing."
        )


def penalised(logits: Tensor, present: Tensor | None, penalty: float) -> Tensor:
    """Return logits [N, V] with those of tokens that are `present` in the row made less likely.

    Example:
        >>> penalised(torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  1.]])
    """
    if present is None:
        return logits
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    most = torch.finfo(logits.dtype).max  # an infinite logit has no probability
    return torch.where(present, changed.clamp(min=-most, max=most), logits)


def probabilities(logits: Tensor, sample: Sample, present: Tensor | None = None) -> Tensor:
    """Return the probabilities [N, V] that tokens are drawn with, fp32.

    The penalty applies to tokens where `present`, bool [N, V], is True; None disables it.
    """
    logits = penalised(logits.float(), present, sample.repetition_penalty)
    divisor = max(sample.temperature, torch.finfo(logits.dtype).tiny)
    # relative to the highest, which stays finite whatever divides it
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / divisor
    if sample.top_k is not None and sample.top_k < logits.shape[-1]:
        least = logits.topk(sample.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probs = logits.softmax(dim=-1)
    if sample.top_p == 1.0 and sample.min_p == 0.0:
        return probs
    keep = probs >= sample.min_p * probs.amax(dim=-1, keepdim=True)
    if sample.top_p < 1.0:
        keep &= _nucleus(probs, sample.top_p)
    probs = probs.masked_fill(~keep, 0.0)
    return probs / probs.sum(dim=-1, keepdim=True)


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Return which most probable tokens together reach top_p: bool [N, V]."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    keep = before < top_p
    keep[..., 0] = True
    return torch.empty_like(keep).scatter_(-1, order, keep)


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Return the token [N] at which the cumulative weights pass the fraction u of their sum.

    Weights [N, V] are not negative and need not sum to 1; u is float64 [N] in [0, 1).
    """
    sums = weights.double().cumsum(dim=-1)
    total = sums[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # never a token of weight 0
    return torch.searchsorted(sums, torch.minimum(u[..., None] * total, below), right=True)[..., 0]


class RandomStreams:
    """Uniform numbers in [0, 1) for each row, which depend on the seed and the row alone.

    Drawn on the CPU, so that every device has the same.
    """

    BUFFERED = 64  # numbers drawn at once

    def __init__(self, seed: int, rows: list[int], device: torch.device | str) -> None:
        self.generators = [torch.Generator().manual_seed(_row_seed(seed, row)) for row in rows]
        self.device = device
        self.buffer: list[Tensor] = []

    def next(self) -> Tensor:
        """Return the next number of each row, float64 [rows]."""
        if not self.buffer:
            drawn = [
                torch.rand(self.BUFFERED, generator=generator, dtype=torch.float64)
                for generator in self.generators
            ]
            self.buffer = list(torch.stack(drawn, dim=1).to(self.device).unbind())[::-1]
        return self.buffer.pop()


def _row_seed(seed: int, row: int) -> int:
    digest = hashlib.blake2b(f"{seed} {row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Sampler:
    """Chooses the next token of each row, and tracks which tokens the penalty applies to.

    Prompts are int [B, T] with valid bool [B, T]; `first` is the index of the first row.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Tensor,
        valid: Tensor | None,
        vocabulary_size: int,
        first: int = 0,
    ) -> None:
        self.sampling = sampling
        batch, device = len(prompts), prompts.device
        self.random = None
        if not isinstance(sampling, Greedy):
            self.random = RandomStreams(sampling.seed, [*range(first, first + batch)], device)
        self.present = None
        if sampling.repetition_penalty != 1.0:
            counts = torch.zeros(batch, vocabulary_size, device=device)
            real = torch.ones_like(prompts) if valid is None else valid
            self.present = counts.scatter_add_(1, prompts, real.float()) > 0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the tokens [B] chosen from logits [B, V]."""
        tokens, _ = self.draw(logits, self.present)
        self.add(tokens)
        return tokens

    def draw(self, logits: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return tokens [N] and the probabilities [N, V] they were drawn with; None if greedy."""
        if isinstance(self.sampling, Greedy):
            penalty = self.sampling.repetition_penalty
            return penalised(logits.float(), present, penalty).argmax(dim=-1), None
        probs = probabilities(logits, self.sampling, present)
        return inverse_cdf(probs, self.random.next()), probs

    def add(self, tokens: Tensor) -> None:
        """Count tokens [B] as present in their rows."""
        if self.present is not None:
            self.present.scatter_(1, tokens[:, None], True)
