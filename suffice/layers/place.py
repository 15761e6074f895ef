"""Where the tokens of padded and packed rows stand.

Positions count real tokens from the first one of their document, so padding may be left, right or
inside a row, and a packed document stands where it would stand alone.

Letters: B batch, S positions of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def runs(segments: Tensor) -> Tensor:
    """Number the runs of equal segments [B, S]: each run is one document.

    Example:
        >>> runs(torch.tensor([[7, 7, 3, 3, 7]])).tolist()
        [[0, 0, 1, 1, 2]]
    """
    changes = segments[:, 1:] != segments[:, :-1]
    return torch.nn.functional.pad(changes.long().cumsum(dim=1), (1, 0))


def positions(valid: Tensor | None, segments: Tensor | None) -> Tensor:
    """Return the position [B, S] of each token in its document: the real tokens before it.

    Args:
        valid: bool [B, S], True = a real token; None = all are.
        segments: int [B, S], runs of equal numbers are documents; None = one document.

    Example:
        >>> valid = torch.tensor([[False, True, True, True, True]])
        >>> positions(valid, torch.tensor([[1, 1, 1, 2, 2]])).tolist()
        [[0, 0, 1, 0, 1]]
    """
    given = valid if valid is not None else segments
    real = torch.ones_like(given, dtype=torch.long) if valid is None else valid.long()
    before = real.cumsum(dim=1) - real
    if segments is None:
        return before
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return before - torch.where(starts, before, 0).cummax(dim=1).values
