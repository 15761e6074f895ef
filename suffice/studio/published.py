"""Published models with their parameter counts, and the figures of a published calculator.

They lie in published.json beside this file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from suffice.files import parse_json
from suffice.studio.calculator import DecoderSizes, calculate

TOLERANCE = 0.02  # error of two printed digits that were cut, not rounded


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A published model."""

    model: DecoderSizes
    parameters: int  # as published, or counted in the published weights or class
    length: int  # context length, tokens; 0 = not stated by the source
    source: str  # publication of the sizes


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One figure of the article."""

    where: str
    says: str  # as printed
    printed: float  # the same in bytes
    computed: int  # bytes by the formula, for the sizes printed beside the figure
    note: str = ""  # what is wrong, or what the figure is for

    @property
    def agrees(self) -> bool:
        """Whether the figure is what the formula gives, within its digits."""
        return abs(self.printed - self.computed) <= TOLERANCE * self.computed

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"agrees": self.agrees}


def _model(entry: dict[str, Any]) -> PublishedModel:
    sizes = entry.pop("model") | {"trained": entry["length"]}
    return PublishedModel(model=DecoderSizes.from_json(sizes), **entry)


def _claim(model: dict[str, Any], length: int, **figure: Any) -> Claim:
    sizes = DecoderSizes.from_json(ARTICLE.to_json() | model)
    return Claim(**figure, computed=calculate(sizes, length).state)


_FACTS = parse_json(files("suffice.studio").joinpath("published.json").read_text("utf-8"))
PUBLISHED_MODELS = tuple(map(_model, _FACTS["models"]))
SOURCE, FORMULA = _FACTS["article"]["source"], _FACTS["article"]["formula"]
ARTICLE = DecoderSizes.from_json(_FACTS["article"]["model"])
ARTICLE_CLAIMS = tuple(_claim(**claim) for claim in _FACTS["article"]["claims"])
