"""Shape checks of public calls; every message says what came and what fits."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import MaskError, ShapeError

Shape = tuple[int | None, ...]


def spell(shape: Shape) -> str:
    """Write a shape for a message, with * for a free size.

    Example:
        >>> spell((2, None, 8))
        '[2, *, 8]'
    """
    return "[" + ", ".join("*" if n is None else str(n) for n in shape) + "]"


def check(name: str, tensor: Tensor, *legal: Shape, hint: str = "") -> None:
    """Raise unless the tensor has one of the legal shapes.

    Args:
        name: how the caller named the tensor.
        tensor: the tensor.
        legal: accepted shapes; None stands for any size.
        hint: what to do about it, one sentence.

    Raises:
        ShapeError: with the shape received, the legal ones and the hint; for what is no tensor.
    """
    if not isinstance(tensor, Tensor):
        raise ShapeError(f"{name} is a {type(tensor).__name__}; give a tensor. {hint}".rstrip())
    for shape in legal:
        if tensor.dim() == len(shape) and all(
            n is None or n == m for n, m in zip(shape, tensor.shape, strict=True)
        ):
            return
    fits = " or ".join(spell(shape) for shape in legal)
    message = f"{name} has shape {spell(tuple(tensor.shape))}; legal: {fits}."
    raise ShapeError(f"{message} {hint}".rstrip())


def check_mask(name: str, mask: Tensor) -> None:
    """Raise unless the mask is boolean (True = may attend).

    Raises:
        MaskError: for any other dtype; names the converters; for what is no tensor.
    """
    if not isinstance(mask, Tensor):
        raise MaskError(
            f"{name} is a {type(mask).__name__}; give a boolean tensor, True = may attend."
        )
    if mask.dtype is not torch.bool:
        raise MaskError(
            f"{name} has dtype {mask.dtype}; a mask is boolean, True = may attend. Other libraries "
            "would read numbers as an additive mask: convert with suffice.masks.from_additive, "
            "from_hf (1 = attend) or from_torch_mha (True = ignore)."
        )
