"""One picture: from the bytes of a JPEG or PNG file to pixels."""

from __future__ import annotations

import io

import numpy as np

from suffice.errors import DataError

FORMATS = ("JPEG", "PNG")
MOST = 1 << 26  # pixels of a picture, before it is resized


def decode(content: bytes, side: int, name: str) -> np.ndarray:
    """Return the pixels of a picture as red, green and blue, resized to a square.

    Grey pictures become coloured ones. A picture of another size is resized without regard to its
    proportions, each new pixel a weighted mean of all that it covers.

    Args:
        content: of the file.
        side: pixels of the square.
        name: of the file, for errors.

    Shapes:
        -> uint8 [3, side, side]

    Raises:
        DataError: if it is no JPEG or PNG, damaged, or absurdly large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST:
                raise DataError(
                    f"{name} has {picture.width}x{picture.height} pixels, more than the "
                    f"{MOST:,} that are read; leave it out."
                )
            picture.draft("RGB", (side, side))  # a JPEG is decoded no larger than it is needed
            coloured = picture.convert("RGB")
            if coloured.size != (side, side):
                coloured = coloured.resize((side, side), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{name} has more than the {MOST:,} pixels that are read ({error}); leave it out."
        ) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{name} is no whole JPEG or PNG ({error}); replace it or leave it out."
        ) from error
    return np.ascontiguousarray(np.asarray(coloured).transpose(2, 0, 1))
