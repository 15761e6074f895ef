"""Kernels of pairs as a user writes them, each with its formula in plain loops or plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from suffice.kernels import Kernel


@dataclass(frozen=True)
class ReluSquared(Kernel):
    """w_ts = relu(s_ts)^2 / (number of allowed keys)."""

    def weights(self, scores, allowed):
        return scores.relu().square() / allowed.sum(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Sigmoid(Kernel):
    """w_ts = sigmoid(s_ts + b_h), with b_h = -log(length) at first; arXiv:2409.04431."""

    length: int = 64

    def learned(self, heads, head_dim):
        return {"bias": torch.full((heads,), -math.log(self.length))}

    def weights(self, scores, allowed, bias):
        return torch.sigmoid(scores + bias[:, None, None])


@dataclass(frozen=True)
class Entmax15(Kernel):
    """w_ts = relu(s_ts / 2 - tau_t)^2, tau_t such that a row sums to 1; arXiv:1905.05702."""

    def weights(self, scores, allowed):
        halves = (scores / 2).masked_fill(~allowed, -torch.inf)
        ordered = halves.sort(dim=-1, descending=True).values
        shifted = ordered - ordered[..., :1]  # the largest is 0, those not allowed are -inf
        finite = shifted.masked_fill(shifted == -torch.inf, 0.0)
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        mean, square = finite.cumsum(-1) / count, finite.square().cumsum(-1) / count
        rest = (1 / count - (square - mean.square())).clamp(min=1e-12)
        tau = mean - rest.sqrt()
        support = ((tau <= shifted) & (shifted > -torch.inf)).sum(dim=-1, keepdim=True)
        threshold = tau.gather(-1, support - 1) + ordered[..., :1]
        return (halves - threshold).clamp(min=0.0).square()


@dataclass(frozen=True)
class Cosine(Kernel):
    """w_ts = softmax over s of exp(g_h) cos(q_t, k_s)."""

    def learned(self, heads, head_dim):
        return {"log_temperature": torch.full((heads,), math.log(10.0))}

    def scores(self, q, k, scale, log_temperature):
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return log_temperature.exp()[:, None, None] * cosines

    def weights(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


OWN = (ReluSquared(), Sigmoid(), Entmax15(), Cosine())
