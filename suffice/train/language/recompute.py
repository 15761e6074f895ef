"""Blocks whose inside is computed anew in the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from suffice.layers import Block


@contextlib.contextmanager
def recomputing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Keep only what enters the blocks of a model, for the time of the context, if it is wanted.

    The random state is put back for the second computation, so dropout drops the same. A block
    that runs without gradients is not touched.
    """
    blocks = [m for m in model.modules() if isinstance(m, Block)] if wanted else []
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
