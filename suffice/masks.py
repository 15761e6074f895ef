"""Other libraries' masks, turned into ours: boolean, True = may attend."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.errors import MaskError, ShapeError
from suffice.utils.torch_compat import check


def from_torch_mha(mask: Tensor) -> Tensor:
    """Turn a mask of `nn.MultiheadAttention`, where True = ignore, into ours, True = attend.

    Works for `key_padding_mask` [B, S] (give the result as valid=) and for a boolean `attn_mask`
    [T, S] or [B * H, T, S] (then `for_heads`). Applied twice it gives the mask
    back.

    Raises:
        MaskError: if the mask is not boolean; an additive one goes through `from_additive`.

    Example:
        >>> from_torch_mha(torch.tensor([[False, True]])).tolist()
        [[True, False]]
    """
    _check_tensor(mask)
    if mask.dtype is not torch.bool:
        raise MaskError(
            f"the mask has dtype {mask.dtype}; from_torch_mha inverts a boolean mask. A float mask "
            "of nn.MultiheadAttention is additive: use from_additive."
        )
    return ~mask


def from_additive(mask: Tensor) -> Tensor:
    """Turn an additive mask (0 = attend, -inf or the dtype's lowest number = ignore) into ours.

    Raises:
        MaskError: if the mask is not floating-point, or holds any other number: that is a bias,
            not a mask.

    Example:
        >>> from_additive(torch.tensor([[0.0, float("-inf")]])).tolist()
        [[True, False]]
    """
    _check_tensor(mask)
    if not mask.dtype.is_floating_point:
        raise MaskError(f"the mask has dtype {mask.dtype}; an additive mask is floating-point.")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if not bool(((mask == 0.0) | hidden).all()):
        raise MaskError(
            "the mask holds numbers other than 0 and -inf, so it is a bias; 0/1 masks where 1 = "
            "attend go through from_hf."
        )
    return ~hidden


def from_hf(attention_mask: Tensor) -> Tensor:
    """Turn Hugging Face's attention_mask [B, S] (1 = attend, 0 = padding) into valid [B, S].

    Raises:
        ShapeError: if the mask is not [B, S].
        MaskError: if it holds anything but 0 and 1.

    Example:
        >>> from_hf(torch.tensor([[1, 0]])).tolist()
        [[True, False]]
    """
    check("attention_mask", attention_mask, (None, None))
    if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise MaskError("attention_mask holds numbers other than 0 and 1; see from_additive.")
    return attention_mask.to(torch.bool)


def for_heads(mask: Tensor, num_heads: int | None = None) -> Tensor:
    """Give a boolean mask [T, S] or [B * H, T, S] the four axes [B or 1, H or 1, T, S] of ours.

    Args:
        mask: boolean, True = attend.
        num_heads: H, needed to split the first axis of a three-dimensional mask.

    Raises:
        ShapeError: if the axes cannot be told.
    """
    if mask.dim() == 2:
        return mask[None, None]
    if mask.dim() == 3 and num_heads and mask.shape[0] % num_heads == 0:
        return mask.unflatten(0, (-1, num_heads))
    raise ShapeError(
        f"a mask of shape {list(mask.shape)} is neither [T, S] nor [B * H, T, S]"
        f"{'' if num_heads else ' (give num_heads to split the latter)'}."
    )


def _check_tensor(mask: object) -> None:
    if not isinstance(mask, Tensor):
        raise MaskError(f"the mask is a {type(mask).__name__}; give a tensor.")
