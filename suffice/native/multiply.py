"""Products with one matrix, as the kernels compute them."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.native import structures as of
from suffice.native.library import library


def multiply(matrix: of.Matrix, x: Tensor) -> Tensor:
    """Return x W^T + b, float32; with a matrix of codes x is coded in 8 bits, too.

    Args:
        matrix: what `structure_of` returned; its tensors are still there.
        x: float32 on the CPU.

    Shapes:
        x: [..., K] -> [..., N]
    """
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], matrix.rows)
    if y.numel():
        rows = x.numel() // matrix.columns
        threads = torch.get_num_threads()
        library().suffice_multiply(matrix, x.data_ptr(), rows, y.data_ptr(), threads)
    return y
