"""What packing a model did: to each map, to its answers, to its speed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, DataError
from suffice.generate import generate
from suffice.models import LM
from suffice.models.packed import replace_module
from suffice.text import Tokenizer


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


TOGETHER = 8  # rows computed at once


@torch.no_grad()
def change(
    lm: LM, packed: Mapping[str, nn.Module], tokens: Tensor, step: Callable[[int, int], None]
) -> Change:
    """Return how answers change when the named modules are replaced; they are put back.

    Args:
        lm: in evaluation.
        packed: what replaces which module.
        tokens: int [B, T]; every token but a row's first is predicted.
        step: told how many rows of how many are done.
    """
    own = {name: lm.get_submodule(name) for name in packed}
    before = after = divergence = 0.0
    for done, rows in enumerate(tokens.to(lm.device).split(TOGETHER)):
        reads, wants = rows[:, :-1], rows[:, 1:].flatten()
        was = _log_probabilities(lm, reads)
        try:
            _put(lm, packed)
            now = _log_probabilities(lm, reads)
        finally:
            _put(lm, own)
        before += float(F.nll_loss(was, wants, reduction="sum"))
        after += float(F.nll_loss(now, wants, reduction="sum"))
        divergence += float(F.kl_div(now, was, reduction="sum", log_target=True))
        step(min((done + 1) * TOGETHER, len(tokens)), len(tokens))
    count = tokens[:, 1:].numel()
    return Change(
        tokens=count,
        divergence=divergence / count,
        perplexity_before=math.exp(min(before / count, 700.0)),
        perplexity_after=math.exp(min(after / count, 700.0)),
    )


def _log_probabilities(lm: LM, tokens: Tensor) -> Tensor:
    return lm(tokens).double().log_softmax(dim=-1).flatten(0, 1)


def _put(lm: LM, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        replace_module(lm, name, module)


FIRST = 4  # tokens not counted


def tokens_per_second(lm: LM, tokens: int = 64) -> float:
    """Return the median rate of new tokens of one text, which `generate` writes greedily.

    Args:
        lm: the model.
        tokens: to write; fewer where the model reads no more.

    Raises:
        ConfigError: if the model's texts are too short to measure.
    """
    tokens = min(tokens, lm.config.length - 1)
    if tokens <= FIRST:
        raise ConfigError(f"a model of length={lm.config.length} writes too little to time it.")
    at: list[float] = []
    generate(lm, [[0]], max_new_tokens=tokens, on_token=lambda _ids: at.append(time.perf_counter()))
    took = [after - before for before, after in zip(at, at[1:], strict=False)]
    return 1.0 / statistics.median(took[FIRST - 1 :])


def rows_of(documents: Iterable[str], tokenizer: Tokenizer, *, length: int, tokens: int) -> Tensor:
    """Return the first tokens of some documents, each between the tokenizer's begin and end.

    Args:
        documents: texts, read as far as needed.
        tokenizer: of the model.
        length: of a row, T; one row is shorter where the text is.
        tokens: about how many in all.

    Raises:
        DataError: if there are not two tokens.

    Shapes:
        int64 [B, T]

    Example:
        >>> from suffice.text import Characters
        >>> rows_of(["abcab"], Characters("abc"), length=2, tokens=4)
        tensor([[0, 1],
                [2, 0]])
    """
    ids: list[int] = []
    for one in _encoded(documents, tokenizer):
        ids += one
        if len(ids) >= max(tokens, length):
            break
    if len(ids) < 2:  # noqa: PLR2004
        raise DataError(f"the text holds {len(ids)} tokens; give a longer one.")
    length = min(length, len(ids))
    rows = max(min(tokens, len(ids)) // length, 1)
    return torch.tensor(ids[: rows * length]).view(rows, length)


def _encoded(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    before = [] if tokenizer.begin is None else [tokenizer.begin]
    after = [] if tokenizer.end is None else [tokenizer.end]
    for document in documents:
        yield [*before, *tokenizer.encode(document), *after]
