"""Weights are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from suffice.errors import CheckpointError


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that hold NaN or infinity.

    Raises:
        CheckpointError: naming the first.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{path} holds NaN or infinity in {name!r:.80}; give weights that are numbers."
            )
