"""Reviews of women's clothing: one to five stars, under a free licence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.data.dataset import Dataset
from suffice.data.find import DataFile, read
from suffice.data.reviews import check, reviews

if TYPE_CHECKING:
    from rich.console import Console

FILE = DataFile(
    path="text_classification/womens_clothing_reviews/reviews.jsonl.xz",
    sha256="b9588d27ffd64ebef7dc516cd87778f40cb4ee30b0c5c0011bd4bb876a0c9635",
)


def womens_clothing(
    *,
    length: int = 64,
    vocabulary_size: int = 20_000,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load 22,641 reviews of women's clothing, rows and parts as those of `amazon`.

    More than half of the reviews give five stars, so balanced accuracy is a score too.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        rows: training rows that are kept at most; None = all.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front

    Raises:
        ConfigError: if an option is not legal.
        DataError: if the file is absent, truncated or altered.

    Source: "Women's E-Commerce Clothing Reviews", N. Brooks 2018, Kaggle.
    """
    check("womens_clothing", length, vocabulary_size, rows)
    return reviews(
        read(FILE, console=console).split(b"\n")[:-1],
        where=FILE.path,
        name="womens_clothing",
        title="Reviews of women's clothing",
        source="N. Brooks 2018, Kaggle (CC0)",
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )
