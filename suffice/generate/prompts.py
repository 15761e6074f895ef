"""Prompts of different lengths as one batch.

Letters: B rows, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.models.embedding import check_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """Rows that end together: shorter ones have padding on the left.

    Args:
        tokens: int64 [B, T].
        valid: bool [B, T], True = a real token; None = all are.
        lengths: real tokens of each row.
    """

    tokens: Tensor
    valid: Tensor | None
    lengths: tuple[int, ...]

    def row(self, row: int) -> Prompts:
        """Return one row without its padding."""
        length = self.lengths[row]
        tokens = self.tokens[row : row + 1, self.tokens.shape[1] - length :]
        return Prompts(tokens=tokens, valid=None, lengths=(length,))


def prompts_of(
    tokens: Tensor | Sequence[Sequence[int]],
    valid: Tensor | None,
    *,
    vocabulary_size: int,
    pad: int,
    device: torch.device,
) -> Prompts:
    """Return prompts as a batch.

    Args:
        tokens: int [B, T], or ids of each row, of any lengths.
        valid: bool [B, T] beside a tensor, True = a real token; padding may stand anywhere.
        vocabulary_size: ids are below this.
        pad: what stands at padding.
        device: where the batch lives.

    Raises:
        ConfigError: for no rows, a row without tokens, ids that are none, or valid beside lists.
        ShapeError: if a shape does not fit.
        MaskError: if valid is not boolean.

    Example:
        >>> prompts_of([[5], [6, 7]], None, vocabulary_size=9, pad=0, device=torch.device("cpu"))
        Prompts(tokens=tensor([[0, 5],
                [6, 7]]), valid=tensor([[False,  True],
                [ True,  True]]), lengths=(1, 2))
    """
    rows = _rows(tokens, valid)
    empty = next((number for number, row in enumerate(rows) if not len(row)), None)
    if not rows or empty is not None:
        what = "no prompts" if not rows else f"prompt {empty} has no token"
        raise ConfigError(f"{what}; give at least one token to go on from in each row.")
    longest = max(map(len, rows))
    batch = torch.full((len(rows), longest), pad)
    for number, row in enumerate(rows):
        batch[number, longest - len(row) :] = row
    low, high = int(batch.min()), int(batch.max())
    if low < 0 or high >= vocabulary_size:
        raise ConfigError(
            f"prompts hold id {low if low < 0 else high}; give ids of 0 to {vocabulary_size - 1}."
        )
    lengths = tuple(map(len, rows))
    real = None
    if min(lengths) < longest:
        starts = longest - torch.tensor(lengths)
        real = (torch.arange(longest) >= starts[:, None]).to(device)
    return Prompts(tokens=batch.to(device), valid=real, lengths=lengths)


def _rows(tokens: Tensor | Sequence[Sequence[int]], valid: Tensor | None) -> list[Tensor]:
    """Return the real tokens of each row."""
    if not isinstance(tokens, Tensor):
        if valid is not None:
            raise ConfigError("valid beside lists of ids: give each row its own tokens only.")
        return [_ids(row) for row in tokens]
    check_rows("tokens", tokens, valid, None)
    if tokens.is_floating_point() or tokens.dtype is torch.bool:
        raise ConfigError(f"tokens have dtype {tokens.dtype}; ids are integers.")
    tokens = tokens.to("cpu", torch.int64)
    if valid is None:
        return list(tokens.unbind())
    return [row[real] for row, real in zip(tokens, valid.cpu(), strict=True)]


def _ids(row: Sequence[int]) -> Tensor:
    """Return one prompt as a tensor; a number would be cut to a whole one, a text is no ids."""
    found = None if isinstance(row, str) else torch.as_tensor(row)
    if found is None or found.dim() != 1:
        raise ConfigError(
            f"a prompt is {row!r:.60}; give a list of prompts, each the ids of a tokenizer, such "
            "as [[5, 2], [7]]."
        )
    if len(found) and (found.is_floating_point() or found.dtype is torch.bool):
        raise ConfigError(f"a prompt has dtype {found.dtype}; ids are integers.")
    return found.to("cpu", torch.int64)
