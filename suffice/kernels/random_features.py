"""What the kernels of random features share: a matrix drawn once from a seed.

Letters: D head width, F rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from suffice.kernels.base import FeatureMap


class RandomFeatures(FeatureMap):
    """A feature map over the products with a random matrix.

    `omega` [F, D] is part of the state dict and stays float32 in layers of any dtype: rounded to
    half it would be another kernel.

    Args:
        rows: F.
        columns: D.
        seed: of the matrix.
        device: where it lives.
    """

    omega: Tensor

    def __init__(
        self, rows: int, columns: int, seed: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("omega", orthogonal(rows, columns, seed).to(device))

    def redraw(self, seed: int) -> None:
        """Draw another matrix in place; layers never do it by themselves."""
        self.omega.copy_(orthogonal(*self.omega.shape, seed))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RandomFeatures:
        """Move, but do not round: what changes dtypes leaves omega as it is."""
        kept = self.omega
        super()._apply(fn, recurse)
        if self.omega.dtype is not kept.dtype:
            self.omega = kept.to(self.omega.device)
        return self


def orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    """Return a float32 matrix of Gaussian rows, orthogonal within each block of `columns` rows.

    A block is Q of the QR decomposition of a Gaussian matrix, signs fixed so that Q is uniform
    among rotations; each row then gets the norm of another Gaussian vector. Drawn on the CPU in
    float64 from a generator of its own, so that a seed means the same matrix on every device.

    Example:
        >>> omega = orthogonal(4, 4, seed=0)
        >>> products = omega @ omega.T
        >>> bool((products - products.diag().diag()).abs().max() < 1e-5)
        True
    """
    generator = torch.Generator().manual_seed(seed)

    def gaussian() -> Tensor:
        return torch.randn(columns, columns, generator=generator, dtype=torch.float64)

    blocks = []
    for _ in range(-(-rows // columns)):
        rotation, triangle = torch.linalg.qr(gaussian())
        rotation = rotation * triangle.diagonal().sign()
        blocks.append(rotation * gaussian().norm(dim=1, keepdim=True))
    return torch.cat(blocks)[:rows].float()
