"""Random streams that are pure functions of what they are for, a seed and an epoch."""

from __future__ import annotations

import hashlib

import torch


def derive(purpose: str, seed: int, epoch: int = 0) -> int:
    """Return a seed for one purpose; equal arguments give equal seeds, others unrelated ones.

    Torch's CPU generator keeps the low 32 bits of a seed only, so sums and shifts of (seed, epoch)
    would collide; a digest does not.

    Example:
        >>> derive("order", 1, 2) == derive("order", 1, 2), derive("order", 2, 1) != derive("x", 2)
        (True, True)
    """
    text = f"{purpose}/{seed}/{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def generator(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """Return a CPU generator seeded with `derive(purpose, seed, epoch)`."""
    return torch.Generator().manual_seed(derive(purpose, seed, epoch))
