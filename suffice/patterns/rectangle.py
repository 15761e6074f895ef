"""What is known of a rectangle of pairs, as numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def judged(*, none: Tensor, every: Tensor) -> Tensor:
    """Return int8: 0 where no pair is allowed, 2 where every pair is, 1 where neither is known.

    Args:
        none: bool, True where it is certain that no pair is allowed.
        every: bool, True where it is certain that every pair is; broadcasts with none.

    Example:
        >>> judged(none=torch.tensor([True, False]), every=torch.tensor([False, True]))
        tensor([0, 2], dtype=torch.int8)
    """
    return (~none).to(torch.int8) + every.to(torch.int8)
