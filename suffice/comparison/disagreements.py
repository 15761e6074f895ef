"""Test rows on which mechanisms disagree, with what they hold and what each one answered."""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from suffice.comparison.answers import Answers, spread
from suffice.comparison.results import Results
from suffice.comparison.sentence import label
from suffice.utils.files import read_json, write_json
from suffice.utils.records import decode, encode

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.data import Dataset

FILE = "disagreements.json"
EACH = 2  # rows that a mechanism gains, and that it loses
MOST = 8  # rows
LONGEST = 800  # characters of a text
SIDE = 128  # pixels of a thumbnail, at most


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    row: int  # index in the test split
    text: str | None = None  # or the end of a long one
    picture: str | None = None  # data address of a PNG
    truth: str  # name of the class
    # number of seeds that gave each class, most frequent first, by mechanism and heads
    answers: dict[str, dict[str, int]]


def disagreements(results: Results, dataset: Dataset) -> tuple[Disagreement, ...]:
    """Return the test rows on which mechanisms and the baseline differ most.

    There are none where answers to single rows were not kept, or where tokens have the labels.
    """
    by_pair = answers_by_pair(results)
    names = () if results.data is None else results.data.classes
    if not names:
        return ()
    return tuple(
        Disagreement(
            row=row,
            text=_text(dataset, row),
            picture=_picture(dataset, row),
            truth=names[_of_row(next(iter(by_pair.values())), row, "label")[0]],
            answers={
                label(*pair): {
                    names[number]: seeds
                    for number, seeds in Counter(_of_row(answers, row, "predicted")).most_common()
                }
                for pair, answers in by_pair.items()
            },
        )
        for row in most_different(by_pair, results.baseline)
    )


def _of_row(answers: list[Answers], row: int, field: str) -> list[int]:
    places = ((one, one.find(row)) for one in answers)
    return [int(getattr(one, field)[place]) for one, place in places if place is not None]


def answers_by_pair(results: Results) -> dict[tuple[str, int], list[Answers]]:
    """Return the answers of each (mechanism, heads), by heads, where those of all seeds were kept.

    Rows that ask for several labels are left out.
    """
    by_pair = {}
    for pair in sorted(results.pairs(), key=lambda key: key[1]):
        cells = results.select(*pair)
        answers = [results.rows[cell.key] for cell in cells if cell.key in results.rows]
        if answers and len(answers) == len(cells) and answers[0].by_row:
            by_pair[pair] = answers
    return by_pair


def gaps(
    by_pair: dict[tuple[str, int], list[Answers]], baseline: str
) -> dict[tuple[str, int], np.ndarray]:
    """Return how much more often each row is right than with the baseline, by mechanism.

    The share of the seeds that are right, minus the baseline's with the same heads; float64 [R].
    """
    rates = {}
    for pair, answers in by_pair.items():
        table = spread([one.right for one in answers], answers)
        tested = (~np.isnan(table)).sum(axis=0)  # a row that no seed has tested is equal for all
        rates[pair] = np.nansum(table, axis=0) / np.maximum(tested, 1)
    return {
        pair: rate - rates[baseline, pair[1]]
        for pair, rate in rates.items()
        if pair[0] != baseline and (baseline, pair[1]) in rates
    }


def most_different(by_pair: dict[tuple[str, int], list[Answers]], baseline: str) -> list[int]:
    """Return rows that mechanisms gain or lose most, the largest gap first."""
    gap_of: dict[int, float] = {}
    for gap in gaps(by_pair, baseline).values():
        for signed in (gap, -gap):
            for row in np.argsort(-signed, kind="stable")[:EACH].tolist():
                if signed[row] > 0:
                    gap_of[row] = max(gap_of.get(row, 0.0), float(signed[row]))
    return sorted(gap_of, key=lambda row: (-gap_of[row], row))[:MOST]


def _text(dataset: Dataset, row: int) -> str | None:
    if dataset.test_texts is None:
        return None
    text = dataset.test_texts[row]
    return text if len(text) <= LONGEST else f"… {text[-LONGEST:]}"


def _picture(dataset: Dataset, row: int) -> str | None:
    inputs = dataset.test.inputs
    return thumbnail(inputs[row], dataset.white) if inputs.dim() == 4 else None  # noqa: PLR2004


def thumbnail(image: Tensor, white: float) -> str:
    """Return an image [C, H, W] as the data address of a PNG; of 2 channels the first is shown."""
    import torch
    from PIL import Image

    pixels = (image.float() * (255.0 / white)).clamp(0, 255).to(torch.uint8)
    colours = len(pixels) == 3  # noqa: PLR2004
    array = (pixels.permute(1, 2, 0) if colours else pixels[0]).numpy()
    picture = Image.fromarray(np.ascontiguousarray(array))
    picture.thumbnail((SIDE, SIDE))
    stream = BytesIO()
    picture.save(stream, format="PNG")
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"


def write_disagreements(folder: Path, shown: tuple[Disagreement, ...]) -> None:
    content = [dataclasses.asdict(one) for one in shown]
    write_json(folder / FILE, {"rows": encode(content)})


def read_disagreements(folder: Path) -> tuple[Disagreement, ...]:
    """Read the rows of a comparison; none where they were not written."""
    path = folder / FILE
    if not path.is_file():
        return ()
    return decode(_Content, read_json(path), where=str(path)).rows


@dataclass(frozen=True, kw_only=True)
class _Content:
    rows: tuple[Disagreement, ...]
