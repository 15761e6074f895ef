"""What a model is given to read: a text, numbers of tokens, or a picture."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suffice.data.picture import decode
from suffice.errors import DataError
from suffice.models import ViT
from suffice.studio.attended.model import Opened

LONGEST = 256  # tokens; further, maps are larger than a page shows
PLAIN, OWN = "plain", "own"
SHOWN = 24  # characters of a token


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """An input, and how to tell its positions.

    Args:
        inputs: [1, T] tokens or [1, C, S, S] pixels.
        labels: one for each position that attention sees.
        grid: patches on a side of the picture; 0 = a text.
        extra: positions before the patches: a class token.
    """

    inputs: Tensor
    labels: tuple[str, ...]
    grid: int = 0
    extra: int = 0


def given(opened: Opened, request: dict[str, Any]) -> Given:
    """Return what a request gives a model to read.

    Args:
        opened: the model.
        request: {"text": words or numbers of tokens} or {"image": base64, "scaling": how}.

    Raises:
        DataError: if it is absent, too long, or cannot be read.
    """
    if opened.reads == "image":
        return _picture(opened.model, request)
    text = request.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError("give a text to read.")
    ids = _ids(text) if opened.tokenizer is None else opened.tokenizer.encode(text)
    if opened.tokenizer is not None and opened.tokenizer.begin is not None:
        ids = [opened.tokenizer.begin, *ids]
    size = opened.model.config.vocabulary_size
    if any(not 0 <= one < size for one in ids):
        raise DataError(f"a number of a token is from 0 to {size - 1:,} here.")
    longest = min(LONGEST, opened.model.config.length)
    if not 1 <= len(ids) <= longest:
        raise DataError(f"{len(ids):,} tokens cannot be shown; give 1 to {longest}.")
    return Given(inputs=torch.tensor([ids]), labels=_labels(opened, ids))


def _ids(text: str) -> list[int]:
    """Return numbers of tokens that somebody typed."""
    words = text.replace(",", " ").split()
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise DataError("no tokenizer lies beside this model: give numbers of tokens, such as 3 1.")
    return list(map(int, words))


def _labels(opened: Opened, ids: list[int]) -> tuple[str, ...]:
    if opened.tokenizer is None:
        return tuple(map(str, ids))
    told = [opened.tokenizer.decode([one]) or f"<{one}>" for one in ids]
    return tuple(one[:SHOWN].replace("\n", "⏎") for one in told)


def _picture(model: ViT, request: dict[str, Any]) -> Given:
    config = model.config
    pixels = torch.from_numpy(
        decode(_content(request.get("image")), config.image_size, "the picture")
    )
    pixels = pixels.float() / 255.0
    if config.channels == 1:
        pixels = pixels.mean(dim=0, keepdim=True)
    elif config.channels != len(pixels):
        raise DataError(f"the model reads {config.channels} channels; a picture has 1 or 3.")
    side = config.image_size // config.patch_size
    extra = int(config.pooling == "class_token")
    if side * side + extra > LONGEST:
        raise DataError(f"{side * side} patches cannot be shown; at most {LONGEST} are.")
    labels = [f"row {i}, column {j}" for i in range(side) for j in range(side)]
    return Given(
        inputs=_scaled(pixels, request.get("scaling", OWN))[None],
        labels=(*["class token"] * extra, *labels),
        grid=side,
        extra=extra,
    )


def _scaled(pixels: Tensor, how: object) -> Tensor:
    """Return pixels as models expect them: by the picture's own moments, or from -1 to 1."""
    if how == PLAIN:
        return pixels * 2.0 - 1.0
    if how != OWN:
        raise DataError(f"scaling {how!r:.40} is not known; give own or plain.")
    return (pixels - pixels.mean()) / pixels.std(correction=0).clamp(min=1e-6)


def _content(image: object) -> bytes:
    if not isinstance(image, str) or not image:
        raise DataError("give a picture, JPEG or PNG.")
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("the picture did not arrive whole; give it again.") from error
