"""The idx format of MNIST: a magic number, the sizes, then bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from torch import Tensor

from suffice.errors import DataError

UNSIGNED_BYTE = 8


def parse(raw: bytes, row: tuple[int, ...], name: str) -> Tensor:
    """Parse an idx file of unsigned bytes.

    The first four bytes are 0, 0, 8 (unsigned byte) and the number of sizes; the sizes follow as
    big-endian 32-bit integers, then one byte for each element.

    Args:
        raw: the whole file, decompressed.
        row: the shape that each row must have, such as (28, 28), or () for labels.
        name: the file's name, for errors.

    Returns:
        uint8 [N, *row]

    Raises:
        DataError: if the magic number, the sizes or the count of bytes is another.
    """
    magic = bytes((0, 0, UNSIGNED_BYTE, len(row) + 1))
    start = 4 + 4 * (len(row) + 1)
    if raw[:4] != magic or len(raw) < start:
        raise DataError(f"{name} starts with {raw[:4].hex()}; an idx file of {magic.hex()} is due.")
    sizes = struct.unpack(f">{len(row) + 1}I", raw[4:start])
    if sizes[1:] != row:
        raise DataError(f"{name} holds rows of {sizes[1:]}; rows of {row} are due.")
    count = len(raw) - start
    if count != math.prod(sizes):
        raise DataError(f"{name} holds {count:,} elements; {math.prod(sizes):,} are due.")
    elements = np.frombuffer(raw, dtype=np.uint8, offset=start)
    return torch.from_numpy(elements.copy()).reshape(sizes)
