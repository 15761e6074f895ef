"""Finished comparisons that come with the package, with the answers of their models."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.comparison.answers import Answers, from_scores
from suffice.comparison.results import Results, cell_path
from suffice.errors import ConfigError, DataError
from suffice.utils.files import read_json, read_record

FOLDER = Path(str(resources.files("suffice_papers").joinpath("results")))
ADVICE = "Take the file of the release, or publish it again with --publish."


@dataclass(frozen=True, kw_only=True)
class Published:
    """The finished cells of one comparison."""

    scale: str  # "paper" or "small", of the recipe
    threads: int  # threads of each training
    recipe: dict[str, Any]  # recipe of the cells as plain data
    results: Results  # the comparison, without its command's folders
    # labels of the test rows that each model has right; None where not kept
    answers: PackedAnswers | None = None

    def with_rows(self) -> Published:
        """Return the same with the answers unpacked into `results.rows`."""
        unpack = (lambda _stem: None) if self.answers is None else self.answers.unpack
        rows = {cell.key: unpack(cell_path(Path(), *cell.key).stem) for cell in self.results.cells}
        rows = {key: answers for key, answers in rows.items() if answers is not None}
        return replace(self, results=replace(self.results, rows=rows))


def path_of(store: str) -> Path:
    """Return the file of published results by name, there or not."""
    return FOLDER / f"{store}.json"


def read_published(name: str) -> Published | None:
    """Return a published comparison with its answers; None if there is none of that name."""
    path = path_of(name)
    return _read(path, path.stat().st_mtime_ns) if path.exists() else None


def published_names() -> list[str]:
    """List the published comparisons; files that hold something else are left out."""
    paths = sorted(FOLDER.glob("*.json"))
    return [path.stem for path in paths if _is_comparison(path, path.stat().st_mtime_ns)]


@lru_cache(maxsize=64)
def _is_comparison(path: Path, stamp: int) -> bool:  # noqa: ARG001 - a changed file is read again
    content = read_json(path, advice=ADVICE)
    return isinstance(content, dict) and "cells" in content.get("results", {})


@lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> Published:  # noqa: ARG001 - a changed file is read again
    return read_record(Published, path, advice=ADVICE).with_rows()


@dataclass(frozen=True, kw_only=True)
class PackedAnswers:
    """How many labels of each test row each model has right, small enough to be published."""

    rows: int  # rows of the test split
    asked: str  # labels of each row, packed; "" where each row asks for one
    # those that have the largest logit, packed, by the stem of the cell's files. Packed are bits
    # where each row asks for one label, else 16-bit numbers, by zlib and base64.
    right: dict[str, str]

    @classmethod
    def of(cls, answers: Mapping[str, Answers]) -> PackedAnswers | None:
        """Pack the answers of models by stem; None without any.

        Raises:
            ConfigError: if they are not on the same rows.
        """
        if not answers:
            return None
        asked, *others = (one.asked for one in answers.values())
        if not all(np.array_equal(asked, other) for other in others):
            raise ConfigError("answers on different test rows cannot be published together.")
        single = bool((asked == 1).all())
        right = {stem: _pack(one.right, single) for stem, one in answers.items()}
        return cls(rows=len(asked), asked="" if single else _pack(asked, single), right=right)

    def unpack(self, stem: str) -> Answers | None:
        """Return the answers of one model, of which only what is right is known; None if absent."""
        if stem not in self.right:
            return None
        asked = _unpack(self.asked, self.rows, single=False) if self.asked else np.ones(self.rows)
        right = _unpack(self.right[stem], self.rows, single=not self.asked)
        return replace(from_scores(right), asked=asked)


def _pack(numbers: NDArray[np.float64], single: bool) -> str:
    counts = numbers.astype("<u2")
    packed = np.packbits(counts) if single else counts
    return b64encode(zlib.compress(packed.tobytes(), 9)).decode()


def _unpack(text: str, rows: int, *, single: bool) -> NDArray[np.float64]:
    try:
        content = zlib.decompress(b64decode(text, validate=True))
    except (ValueError, zlib.error) as error:
        raise DataError(f"published answers are damaged ({error}).") from error
    if len(content) != (-(-rows // 8) if single else 2 * rows):
        raise DataError(f"published answers hold {len(content)} bytes, which are not {rows} rows.")
    numbers = np.frombuffer(content, np.uint8 if single else "<u2")
    return (np.unpackbits(numbers, count=rows) if single else numbers).astype(np.float64)
