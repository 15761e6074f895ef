"""Amazon reviews: one to five stars, as the last words of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.data.dataset import Dataset
from suffice.data.find import DataFile, read
from suffice.data.lines import lines
from suffice.data.reviews import check, reviews

if TYPE_CHECKING:
    from rich.console import Console

FILE = DataFile(
    path="text_classification/amazon_reviews/amazon_reviews.jsonl.xz",
    sha256="89ef3ad4ec7cac34703b04cad3591a05e66cd2e9e9964078feb5b3f5fd483326",
)


def amazon(
    *,
    length: int = 64,
    vocabulary_size: int = 40_000,
    path: str | None = None,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load reviews of one to five stars: a sample of 20,888, or a file of the user's.

    A review is its words after a start token; the last `length` ids are kept, and shorter ones are
    padded in front. Titles are left out: many are the number of stars in words. More than half of
    the reviews give five stars, so balanced accuracy is a score too. By the sha1 of its text a
    tenth of the reviews are for the test and a tenth for validation. Words are ranked by frequency
    in the training rows alone.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        path: of the user's own reviews, lines of JSON with "rating" and "text" or, as in the full
            set, "overall" and "reviewText"; plain, .gz or .xz. None = the sample.
        rows: training rows that are kept at most; None = all.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front

    Raises:
        ConfigError: if an option is not legal.
        DataError: if the file is absent, truncated, altered, or holds a line that is no review.

    Source: McAuley and Leskovec 2013; Blitzer et al. 2007; Zhang et al. 2015, arXiv:1509.01626; Ni
        et al. 2019, "Justifying Recommendations using Distantly-Labeled Reviews", EMNLP, whose full
        set is the paper's. The sample is of all four.
    """
    check("amazon", length, vocabulary_size, rows)
    sample = path is None
    return reviews(
        read(FILE, console=console).split(b"\n")[:-1] if sample else lines(path),
        where=FILE.path if sample else str(path),
        name="amazon",
        title="Amazon reviews, a sample" if sample else "Amazon reviews of the user",
        source="Ni et al. 2019 and three more (research use; the texts belong to their authors)",
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )
