"""Products with one matrix, as the kernels compute them."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import ShapeError
from suffice.native import structures as of
from suffice.native.library import library


def multiply(matrix: of.Matrix, x: Tensor) -> Tensor:
    """Return x W^T + b, float32; with a matrix of codes x is coded in 8 bits, too.

    Args:
        matrix: what `structure_of` returned; its tensors are still there.
        x: float32 on the CPU.

    Shapes:
        x: [..., K] -> [..., N]

    Raises:
        ShapeError: if x has other features; nothing was read then.
    """
    if x.shape[-1] != matrix.columns:
        raise ShapeError(f"x has {x.shape[-1]} features; this matrix reads {matrix.columns}.")
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], matrix.rows)
    if y.numel():
        rows = x.numel() // matrix.columns
        threads = torch.get_num_threads()
        library().suffice_multiply(matrix, x.data_ptr(), rows, y.data_ptr(), threads)
    return y
