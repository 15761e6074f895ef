"""What packing a model did: to each map, to its answers, to its speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What became of one map.

    Args:
        name: of its module.
        scheme: how its numbers are stored now, or were before where it is skipped.
        kernel: what multiplies on this machine; "" where it is skipped.
        bytes_before: of its weights.
        bytes_after: of its weights now.
        error: root mean square of the change of its outputs over that of the outputs, from rounded
            weights alone; for inputs of the calibration text, or without one for inputs that are
            not correlated. None where it is skipped.
        skipped: why it stays as it was; "" where it is packed.
    """

    name: str
    scheme: str
    kernel: str
    bytes_before: int
    bytes_after: int
    error: float | None
    skipped: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """How the model's answers changed on a text.

    Args:
        tokens: predicted ones.
        divergence: mean Kullback-Leibler divergence of the distribution now from the one before,
            nats per token.
        perplexity_before: on the text.
        perplexity_after: on the text.
    """

    tokens: int
    divergence: float
    perplexity_before: float
    perplexity_after: float

    @property
    def increase(self) -> float:
        """The perplexity's growth, 0.01 for one percent."""
        return self.perplexity_after / self.perplexity_before - 1.0


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast the model writes one text on this machine, tokens/s: medians.

    Args:
        before: with weights as they were.
        after: with packed weights.
        threads: of torch and the kernels.
    """

    before: float
    after: float
    threads: int

    @property
    def told(self) -> str:
        """The comparison in a sentence."""
        factor = self.after / self.before
        if factor < 1.0:
            return (
                f"packed weights decode slower than the weights before here: {self.after:,.0f} "
                f"against {self.before:,.0f} tokens/s (x{factor:.2f}); they save memory, not time"
            )
        return f"{self.after:,.0f} tokens/s, before {self.before:,.0f} (x{factor:.2f})"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What packing a model did.

    Args:
        bits: of packed weights.
        layers: what became of each map.
        bytes_before: of all weights of the model.
        bytes_after: of all weights of the model now.
        calibration_tokens: that the rounding looked at; 0 = it looked at weights alone.
        change: of the answers; None where no text was given.
        speed: None where it was not measured.
    """

    bits: int
    layers: tuple[Layer, ...]
    bytes_before: int
    bytes_after: int
    calibration_tokens: int = 0
    change: Change | None = None
    speed: Speed | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)
