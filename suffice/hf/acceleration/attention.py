"""Attention of stock models by `suffice.ops.attend`: an AttentionInterface and its mask function.

transformers describes a mask by functions of positions. Those that are windows, causal or packed
become a pattern, padding and documents, and no mask is made; all others become a boolean mask.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    packed_sequence_mask_function,
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_overlay,
    sliding_window_overlay,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_tracing

from suffice.ops.attend import attend
from suffice.patterns import Causal, Full, Pattern, Window

NAME = "suffice-cpu"
"""The implementation; transformers leaves the name out of what it saves."""

MaskFunction = Callable[..., Any]
FULL, CAUSAL = Full(), Causal()


class Restriction(NamedTuple):
    """The pairs that a mask function allows."""

    pattern: Pattern
    documents: Tensor | None = None  # int [B, T] of packed rows, which see their own alone


# two functions made in the same place share their code
_AND = and_masks(causal_mask_function).__code__
_BEFORE = sliding_window_overlay(1).__code__
_AROUND = sliding_window_bidirectional_overlay(1).__code__
_PACKED = packed_sequence_mask_function(torch.zeros(1, 1)).__code__
_REMAP = getattr(masking_utils, "remap_positions_for_packed_sequence", None)  # new in 5.23
_REMAPPED = _REMAP and _REMAP(causal_mask_function, torch.zeros(1, 1)).__code__
_KNOWN = {_AND, _BEFORE, _AROUND, _PACKED, _REMAPPED} - {None}


def restriction_of(function: MaskFunction) -> Restriction | None:
    """Return what a mask function of transformers says, None for one that is not known here."""
    if function is causal_mask_function:
        return Restriction(CAUSAL)
    if function is bidirectional_mask_function:
        return Restriction(FULL)
    code = getattr(function, "__code__", None)
    if code not in _KNOWN:
        return None
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    values = dict(zip(code.co_freevars, cells, strict=True))
    if code is _BEFORE:
        return Restriction(_window(values["sliding_window"], causal=True))
    if code is _AROUND:
        return Restriction(_window(values["sliding_window"], causal=False))
    if code is _PACKED:
        return Restriction(FULL, values["packed_sequence_mask"])
    if code is _REMAPPED:  # positions within a document differ as those within the row
        return restriction_of(values["mask_function"])
    pattern, documents = FULL, None
    for joined in values["mask_functions"]:
        part = restriction_of(joined)
        if part is None:
            return None
        pattern = _both(pattern, part.pattern)
        documents = part.documents if documents is None else documents
    return Restriction(pattern, documents)


@lru_cache(maxsize=64)
def _window(reach: int, *, causal: bool) -> Pattern:
    """Return a window of transformers, where only a causal one counts the position itself."""
    return Window(reach) & CAUSAL if causal else Window(reach + 1)


@lru_cache(maxsize=64)
def _both(first: Pattern, second: Pattern) -> Pattern:
    if isinstance(first, Full) or first == second:
        return second
    return first & second


class PatternMask(Tensor):
    """A boolean mask [B, 1, T, S] that is made when something other than `attention` reads it."""

    pattern: Pattern
    documents: Tensor | None
    valid: Tensor | None  # bool [B, S]; None if every key is real
    keys: int  # no query sees more of them
    make: Callable[[], Tensor]

    @staticmethod
    def of(
        size: tuple[int, ...],
        restriction: Restriction,
        valid: Tensor | None,
        keys: int,
        make: Callable[[], Tensor],
    ) -> PatternMask:
        """Return the mask of this size that `make` returns dense."""
        cpu = torch.device("cpu")
        mask = Tensor._make_wrapper_subclass(PatternMask, size, dtype=torch.bool, device=cpu)
        mask.pattern, mask.documents = restriction
        mask.valid, mask.keys, mask.make = valid, keys, make
        return mask

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        """Compute anything from the dense mask."""
        del types
        dense = lambda x: x.make() if isinstance(x, cls) else x  # noqa: E731
        args, kwargs = tree_map(dense, (args, kwargs or {}))
        return function(*args, **kwargs)


def mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """Return a mask for `attention`; None where `is_causal` of the layer says everything."""
    settings: dict[str, Any] = others | {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }

    def make() -> Tensor:
        return cast("Tensor", sdpa_mask(**settings))

    if is_tracing(attention_mask):
        return make()
    restriction = restriction_of(mask_function)
    keys = int(q_offset) + q_length - kv_offset
    if restriction is None or not 0 < keys <= kv_length:
        return make()
    pattern, documents = restriction
    if not pattern.causal and keys != kv_length:
        if not isinstance(pattern, Full):
            return make()
        keys = kv_length
    valid = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if valid is not None:
        valid = valid[:, kv_offset : kv_offset + keys].bool()
        valid = None if bool(valid.all()) else valid
    says_all = isinstance(pattern, Full) or (pattern == CAUSAL and q_length in (1, kv_length))
    if says_all and valid is documents is None and keys == kv_length:
        return None
    size = batch_size, 1, q_length, kv_length
    return PatternMask.of(size, restriction, valid, keys, make)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return [B, T, H, D] of the queries [B, H, T, D], keys and values [B, G, S, D].

    Transformers' own function computes what `attend` does not: dropout, biases, paged caches,
    weights, a mask of numbers.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    wants = ("position_bias", "cache", "output_attentions")
    numbers = attention_mask is not None and attention_mask.dtype is not torch.bool
    if dropout or numbers or any(others.get(name) is not None for name in wants):
        optional = {"softcap": softcap, "s_aux": s_aux}
        others |= {name: x for name, x in optional.items() if x is not None}
        others |= {"scaling": scaling, "dropout": dropout, "is_causal": is_causal}
        return _of_transformers(module, query, key, value, attention_mask, causal, others)
    options: dict[str, Any] = {"scale": scaling, "cap": softcap}
    pattern, keys = FULL, key.shape[2]
    if isinstance(attention_mask, PatternMask):
        pattern, keys = attention_mask.pattern, attention_mask.keys
        documents = attention_mask.documents
        options["valid"] = attention_mask.valid
        options["segments"] = None if documents is None else (documents, documents)
        if attention_mask.shape[3] < key.shape[2]:  # transformers drops nothing of a window of 1
            key, value = (x[:, :, -attention_mask.shape[3] :] for x in (key, value))
    elif attention_mask is not None:
        options["mask"] = attention_mask
    elif causal and query.shape[2] > 1:  # more keys than queries: a static cache that was empty
        pattern, keys = CAUSAL, query.shape[2]
    if keys != key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else value.dtype
    query, key, value = (x.to(dtype) for x in (query, key, value))
    options["sinks"] = None if s_aux is None else s_aux.to(dtype)
    out = attend(query, key, value, pattern=pattern, **options)
    return out.transpose(1, 2).contiguous(), None


def _of_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    causal: bool,  # noqa: FBT001
    others: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    dense = attention_mask.make() if isinstance(attention_mask, PatternMask) else attention_mask
    if not {"softcap", "s_aux"} & others.keys() and not others.get("output_attentions"):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, dense, **others)
    if dense is None and causal and query.shape[2] > 1:
        positions = torch.arange(key.shape[2])
        dense = (positions <= positions[: query.shape[2], None])[None, None]
    if dense is not None and dense.dtype is torch.bool:
        least = torch.finfo(query.dtype).min
        dense = torch.zeros(dense.shape, dtype=query.dtype).masked_fill(~dense, least)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, dense, **others)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
