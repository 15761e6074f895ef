"""Tensors made under torch.inference_mode, and what may go on with them outside of it."""

from __future__ import annotations

import torch
from torch import Tensor


def usable(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return tensors that may be written and differentiated through here.

    What was made under `torch.inference_mode()` may be neither outside of it: it is copied, once.

    Example:
        >>> with torch.inference_mode():
        ...     x = torch.zeros(1)
        >>> usable((x,))[0].is_inference()
        False
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return tensors
    return tuple(x.clone() if x.is_inference() else x for x in tensors)
