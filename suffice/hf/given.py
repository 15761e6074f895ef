"""What a call was given, in this library's terms.

Letters: B batch, T new tokens, P tokens before them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.hf.cache import SufficeCache
from suffice.layers.place import positions
from suffice.ops.looked import looked_into


def check_nothing_else(others: dict[str, Any]) -> None:
    """Refuse arguments that nothing here reads.

    Raises:
        ConfigError: naming them.
    """
    unread = [name for name, value in others.items() if value is not None]
    if unread:
        raise ConfigError(
            f"a suffice model does not know {', '.join(unread)}; leave out what is given."
        )


def check_cache(cache: Any) -> None:
    """Refuse a cache that is not of this library.

    Raises:
        ConfigError: naming its class.
    """
    if cache is not None and not isinstance(cache, SufficeCache):
        raise ConfigError(
            f"past_key_values is a {type(cache).__name__}; give a SufficeCache(model), which holds "
            "what each mechanism keeps, or leave it out."
        )


def one_of(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Return what was given of the two.

    Raises:
        ConfigError: if both or neither was.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ConfigError("give exactly one of input_ids and inputs_embeds.")
    return inputs_embeds if input_ids is None else input_ids


def real_tokens(mask: Tensor | None, given: Tensor, past: int) -> Tensor | None:
    """Return which of the new tokens are real, bool [B, T]; None = all, where that may be asked.

    Args:
        mask: [B, P + T], 1 or True = a real token.
        given: [B, T, ...].
        past: P.

    Raises:
        MaskError: if the mask is no tensor of 0 and 1.
        ShapeError: if it has another shape.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise MaskError(
            f"attention_mask is {shape}; give [batch, tokens so far], 1 = a real token. What a "
            "query may see is the mechanism's."
        )
    batch, new = given.shape[:2]
    if tuple(mask.shape) != (batch, past + new):
        raise ShapeError(
            f"attention_mask has shape {tuple(mask.shape)} for {batch} rows of {past} tokens read "
            f"before and {new} new ones; give one entry for each, [{batch}, {past + new}]."
        )
    real = mask[:, past:] != 0
    return None if not looked_into(real) and bool(real.all()) else real


def documents_of(
    position_ids: Tensor | None,
    given: Tensor,
    valid: Tensor | None,
    places: Tensor | None = None,
) -> Tensor | None:
    """Return the documents that positions tell of, int [B, T]; None if each row is one.

    Args:
        position_ids: [B or 1, T], or None.
        given: [B, T, ...].
        valid: bool [B, T], True = a real token; None = all are.
        places: where the tokens stand, as the model counts; None = from 0.

    Raises:
        ConfigError: for positions that are not counted from the start of a row or a document.
    """
    if position_ids is None:
        return None
    real = valid
    if real is None:
        real = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
    told = position_ids.expand(real.shape)
    counted = positions(real, None) if places is None else places.expand(real.shape)
    if torch.equal(told[real], counted[real]):
        return None
    segments = (told == 0).long().cumsum(dim=1)
    if places is None and valid is None and torch.equal(told, positions(None, segments)):
        return segments
    raise ConfigError(
        "position_ids do not count the real tokens of each row from 0, which is how the model "
        "places them; leave them out, or let each packed document start at 0 without a mask."
    )
