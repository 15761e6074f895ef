"""Sums of keys and values that decay or are corrected as the sequence goes on: one chunked scan.

A head keeps a matrix S [D, E]. At position t it decays, takes in a key and a value, and is read:

    S = decay_t S,   S = S + k_t (v_t or beta_t (v_t - S^T k_t))^T,   o_t = S^T q_t.

`stepwise` is that formula. `chunked` computes pieces of C positions by products of matrices: a
query weighs the keys of its own chunk and reads the state before it. Corrected values depend on
those before them, by a triangular system for each chunk (arXiv:2406.06484, section 3.2, with decay
arXiv:2412.06464, section 3.3). Decays are logarithms, and every exponent is a sum of them over
positions passed, so none is above 0 and nothing overflows.

Letters: B batch, H heads, T positions, N chunks of C, D key width, E value width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import UnsupportedError
from suffice.kernels.recurrent import chunk_of
from suffice.ops import reference
from suffice.ops.op import Op


def attend(*_: object) -> Tensor:
    """Refuse a call without a layer: the gates of a recurrence are learned."""
    raise UnsupportedError("a recurrence reads gates that a layer makes; call an Attention layer.")


RECURRENCE = Op(
    "recurrence", "sums that decay or are corrected, chunk by chunk", attend, reference.refuses
)


class Sequence(NamedTuple):
    """What is summed: float32 or better."""

    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, H, T, D]
    v: Tensor  # [B, H, T, E]
    log_decay: Tensor | None  # [B, H, T, 1 or D], at most 0; None: nothing decays
    beta: Tensor | None  # [B, H, T, 1], share of a value that is corrected; None: sums
    documents: Tensor | None  # int [B, T], which rise along a row; None: one


def stepwise(data: Sequence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the state [B, H, D, E] after them, one by one."""
    outs = []
    for t in range(data.q.shape[2]):
        q, k, v = (x[:, :, t, None] for x in data[:3])  # [B, H, 1, width]
        if t and data.documents is not None:
            same = data.documents[:, t] == data.documents[:, t - 1]
            state = state * same[:, None, None, None]
        if data.log_decay is not None:
            state = state * data.log_decay[:, :, t, :, None].exp()
        if data.beta is not None:
            v = data.beta[:, :, t, None] * (v - k @ state)
        state = state + k.mT * v
        outs.append(q @ state)
    return (torch.cat(outs, dim=2) if outs else data.v), state


def chunked(data: Sequence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `stepwise` does, within rounding."""
    length = data.q.shape[2]
    if not length:
        return data.v, state
    by_features = data.log_decay is not None and data.log_decay.shape[-1] > 1
    factors, (q, k, v, beta) = _cut(data, chunk_of(length, by_features=by_features))
    weights = factors.weigh(q, k)
    reading, adding = _times(q, factors.entering), _times(k, factors.leaving)
    if beta is None:
        return _summed(weights @ v, reading, adding.mT @ v, factors.passing, state, length)
    corrections = factors.weigh(k * beta, k).tril(-1)
    sides = torch.cat([v * beta, _times(k * beta, factors.entering)], dim=-1)
    solved = torch.linalg.solve_triangular(corrections, sides, upper=False, unitriangular=True)
    fresh, stale = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    outs = []
    for n in range(q.shape[2]):
        value = fresh[:, :, n] - stale[:, :, n] @ state
        outs.append(reading[:, :, n] @ state + weights[:, :, n] @ value)
        state = _times(state, _at(factors.passing, n)) + adding[:, :, n].mT @ value
    return torch.cat(outs, dim=2)[:, :, :length], state


def _summed(
    outs: Tensor,
    reading: Tensor,
    added: Tensor,
    passing: Tensor | None,
    state: Tensor,
    length: int,
) -> tuple[Tensor, Tensor]:
    """Return outputs and state of sums, whose values depend on no state."""
    states = []
    for n in range(added.shape[2]):
        states.append(state)
        state = _times(state, _at(passing, n)) + added[:, :, n]
    outs = outs + reading @ torch.stack(states, dim=2)
    return outs.flatten(2, 3)[:, :, :length], state


class _Factors(NamedTuple):
    """Factors of a chunk's positions; None: all are 1."""

    entering: Tensor | None  # [B, H or 1, N, C, 1 or D], of the state before, at a query
    leaving: Tensor | None  # [B, H or 1, N, C, 1 or D], of a key, in the state after
    passing: Tensor | None  # [B, H or 1, N, 1 or D, 1], of the state before, in the state after
    sums: Tensor | None  # float64 [B, H, N, C, 1 or D], of log decays within the chunk
    same: Tensor | None  # bool [B, 1, N, C, C], True for pairs of one document

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the products of queries and keys of a chunk, decayed: [B, H, N, C, C], lower."""
        length = q.shape[3]
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        if self.same is not None:
            seen = seen & self.same
        if self.sums is None:
            return (q @ k.mT).masked_fill(~seen, 0.0)
        if self.sums.shape[-1] == 1:
            between = (self.sums - self.sums.mT).to(q.dtype).masked_fill(~seen, -torch.inf)
            return (q @ k.mT) * between.exp()
        between = (self.sums[..., :, None, :] - self.sums[..., None, :, :]).to(q.dtype)
        between = between.masked_fill(~seen[..., None], -torch.inf).exp()
        return (q[..., :, None, :] * k[..., None, :, :] * between).sum(-1)


def _cut(data: Sequence, chunk: int) -> tuple[_Factors, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return the factors, and q, k, v and beta as [B, H, N, C, width]; the last chunk is filled."""
    more = -data.q.shape[2] % chunk
    parts = [
        None if x is None else F.pad(x, (0, 0, 0, more)).unflatten(2, (-1, chunk))
        for x in (data.q, data.k, data.v, data.beta, data.log_decay)
    ]
    entering = leaving = passing = sums = same = None
    if data.documents is not None:
        numbers = F.pad(data.documents, (0, more))
        numbers[:, numbers.shape[1] - more :] = data.documents[:, -1:]
        numbers = numbers.unflatten(1, (-1, chunk))[:, None, ..., None]  # B 1 N C 1
        same = numbers == numbers.mT
    if (log := parts.pop()) is not None:
        sums = log.double()  # a small decay after a large one is not rounded away
        sums = sums.cumsum(dim=3) if same is None else same.tril().double() @ sums
        last = sums[:, :, :, -1:]
        leaving = (last - sums).clamp(max=0.0).to(log.dtype).exp()
        entering, passing = sums.to(log.dtype).exp(), last.mT.to(log.dtype).exp()
    if same is not None:
        last = numbers[:, :, :, -1:]
        before = torch.cat([numbers[:, :, :1, :1], last[:, :, :-1]], dim=2)
        entering = _both(entering, numbers == before)
        leaving = _both(leaving, numbers == last)
        passing = _both(passing, before == last)
    return _Factors(entering, leaving, passing, sums, same), tuple(parts)


def _both(factor: Tensor | None, allowed: Tensor) -> Tensor:
    return allowed.float() if factor is None else factor * allowed


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor.to(x.dtype)


def _at(factor: Tensor | None, n: int) -> Tensor | None:
    return None if factor is None else factor[:, :, n]
