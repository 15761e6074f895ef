"""How the next token is chosen, as values.

Everything is computed in fp32, in this order: repetition penalty, temperature, top-k, top-p, min-p,
softmax over what is left.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.prompts import Prompts
from suffice.records import check_fields


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The token with the highest logit; of equal ones that with the lowest id.

    Args:
        repetition_penalty: see `Sample`.

    Raises:
        ConfigError: if the penalty is not above 0.
    """

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_penalty(self)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A token drawn from softmax(logits), changed and restricted as follows, in this order.

    Args:
        temperature: logits are divided by it.
        top_k: tokens whose logit is at least the k-th highest are left; None = all.
        top_p: the fewest most probable tokens whose probabilities sum to at least this are left;
            of equal ones the lowest ids. 1 = all.
        min_p: tokens at least this share of the highest probability are left; 0 = all.
        repetition_penalty: before all of this, logits of tokens that stand in the row already are
            divided by it where positive and multiplied by it where negative. 1 = no change.
        seed: row i of a call draws numbers of its own, which depend on seed and i alone.

    Raises:
        ConfigError: if a number is outside its range.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751
        (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p); Keskar et al. 2019,
        arXiv:1909.05858, section 4.1 (penalty). Differs: the penalty of a negative logit.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

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


def penalised(logits: Tensor, seen: Tensor | None, penalty: float) -> Tensor:
    """Return logits with those of tokens that were seen brought nearer to never.

    Args:
        logits: [N, V].
        seen: bool [N, V]; None = no penalty.
        penalty: divides positive logits and multiplies negative ones.

    Example:
        >>> penalised(torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  1.]])
    """
    if seen is None:
        return logits
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    most = torch.finfo(logits.dtype).max  # an infinite logit has no probability
    return torch.where(seen, changed.clamp(min=-most, max=most), logits)


def probabilities(logits: Tensor, sample: Sample, seen: Tensor | None = None) -> Tensor:
    """Return the probabilities [N, V] that tokens are drawn with, fp32.

    Args:
        logits: [N, V].
        sample: what changes and restricts them.
        seen: bool [N, V], tokens the penalty holds for; None = no penalty.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0, -100.0]])
        >>> probabilities(logits, Sample(top_k=2))
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    logits = penalised(logits.float(), seen, sample.repetition_penalty)
    divisor = max(sample.temperature, torch.finfo(logits.dtype).tiny)
    # from the highest down: the highest stays finite whatever divides it
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / divisor
    if sample.top_k is not None and sample.top_k < logits.shape[-1]:
        least = logits.topk(sample.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    shares = logits.softmax(dim=-1)
    if sample.top_p == 1.0 and sample.min_p == 0.0:
        return shares
    left = shares >= sample.min_p * shares.amax(dim=-1, keepdim=True)
    if sample.top_p < 1.0:
        left &= _fewest(shares, sample.top_p)
    shares = shares.masked_fill(~left, 0.0)
    return shares / shares.sum(dim=-1, keepdim=True)


def _fewest(shares: Tensor, top_p: float) -> Tensor:
    """Return which most probable tokens together have the share top_p: bool [N, V]."""
    ordered, order = shares.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    left = before < top_p
    left[..., 0] = True
    return torch.empty_like(left).scatter_(-1, order, left)


def pick(shares: Tensor, at: Tensor) -> Tensor:
    """Return the token [N] where the running sum of probabilities passes a share of the whole.

    Args:
        shares: [N, V], not negative; rows need not sum to 1.
        at: float64 [N] in [0, 1).

    Example:
        >>> shares = torch.tensor([[0.25, 0.0, 0.75]]).expand(3, -1)
        >>> pick(shares, torch.tensor([0.0, 0.25, 0.99]).double())
        tensor([0, 2, 2])
    """
    sums = shares.double().cumsum(dim=-1)
    whole = sums[..., -1:]
    below = torch.nextafter(whole, torch.zeros_like(whole))  # a token of no share is never picked
    return torch.searchsorted(sums, torch.minimum(at[..., None] * whole, below), right=True)[..., 0]


KEPT = 64  # numbers drawn at once


class Draws:
    """A sequence of numbers in [0, 1) for each row, which depends on the seed and the row alone.

    Drawn on the CPU, so that every device has the same.

    Args:
        seed: of the call.
        rows: numbers of the rows.
        device: where the numbers are used.

    Example:
        >>> one, both = Draws(5, [1], "cpu"), Draws(5, [0, 1], "cpu")
        >>> bool(one.next()[0] == both.next()[1])
        True
    """

    def __init__(self, seed: int, rows: list[int], device: torch.device | str) -> None:
        self.generators = [torch.Generator().manual_seed(_seed(seed, row)) for row in rows]
        self.device = device
        self.kept: list[Tensor] = []

    def next(self) -> Tensor:
        """Return the next number of each row, float64 [rows]."""
        if not self.kept:
            drawn = [torch.rand(KEPT, generator=g, dtype=torch.float64) for g in self.generators]
            self.kept = list(torch.stack(drawn, dim=1).to(self.device).unbind())[::-1]
        return self.kept.pop()


def _seed(seed: int, row: int) -> int:
    digest = hashlib.blake2b(f"{seed} {row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


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
