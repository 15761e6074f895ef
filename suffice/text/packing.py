"""Packing documents of many lengths into rows of one.

Letters: N rows, T tokens of a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from suffice.errors import ConfigError, DataError


def pack(documents: Iterable[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Put documents into as few rows as a greedy rule finds; every token is in exactly one row.

    A document longer than a row is cut after every `length` tokens, and each piece is from then on
    a document of its own: it does not see the pieces before it. Pieces are placed longest first,
    each into the row with the least room that holds it. What is left of a row is padding.

    Args:
        documents: token ids of each; empty ones are passed over.
        length: tokens of a row.

    Returns:
        The tokens and the segments. Within a row the documents have the numbers 1, 2, ... from
        left to right; padding has the token 0 and the segment 0, so `segments > 0` is `valid`.

    Shapes:
        int64 [N, T], int64 [N, T]

    Raises:
        ConfigError: if length is not an integer >= 1, or a document is not a sequence of ids.
        DataError: if there is no token.

    Example:
        >>> tokens, segments = pack([[1, 2, 3], [4], [5, 6, 7, 8, 9]], 4)
        >>> tokens.tolist(), segments.tolist()
        ([[5, 6, 7, 8], [1, 2, 3, 4], [9, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 2], [1, 0, 0, 0]])

    Source: Ding et al. 2024, arXiv:2404.10830, best-fit packing. Differs: none.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ConfigError(f"length={length!r} is not legal; give an integer >= 1.")
    pieces = [
        row[at : at + length] for row in map(_row, documents) for at in range(0, len(row), length)
    ]
    if not pieces:
        raise DataError("there is no token to pack; give documents that hold some.")
    rows = _rows([len(piece) for piece in pieces], length)
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    segments = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        at = 0
        for segment, piece in enumerate((pieces[index] for index in row), 1):
            tokens[number, at : at + len(piece)] = piece
            segments[number, at : at + len(piece)] = segment
            at += len(piece)
    return torch.from_numpy(tokens), torch.from_numpy(segments)


def _row(document: Sequence[int]) -> np.ndarray:
    row = np.asarray(document)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ConfigError(
            f"a document is {document!r:.60}, which is no sequence of token ids; encode it first."
        )
    return row


def _rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return the indices of the pieces in each row, best fit first."""
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the room they have
    rooms: list[int] = []  # the rooms there are, ascending
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        place = bisect_left(rooms, size)
        if place == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[place]
        rows[row].append(index)
        left = room - size
        if left and not with_room[left]:
            insort(rooms, left)
        if left:
            with_room[left].append(row)
    return rows
