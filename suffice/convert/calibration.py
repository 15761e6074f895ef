"""What attention layers read: means and second moments, summed in float64 in one pass.

Letters: B rows, T positions, M inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, DataError
from suffice.layers import Attention
from suffice.quantise.report import rows_of
from suffice.text import Corpus, Tokenizer

RIDGE = 1e-5  # of the mean of the diagonal
Seen = Callable[[str, Tensor, dict[str, Any], Tensor], None]


class Moments:
    """Sums over the inputs [x 1] of one layer, padding left out.

    Args:
        inputs: M.
    """

    def __init__(self, inputs: int) -> None:
        self.sums = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)

    def add(self, x: Tensor, valid: Tensor | None) -> None:
        """Take inputs [B, T, M]; valid [B, T], True = real."""
        rows = x.detach().flatten(0, 1) if valid is None else x.detach()[valid]
        rows = torch.nn.functional.pad(rows.double().cpu(), (0, 1), value=1.0)
        self.sums += rows.T @ rows

    @property
    def count(self) -> int:
        """Positions."""
        return round(float(self.sums[-1, -1]))

    @property
    def augmented(self) -> Tensor:
        """The second moment of [x 1], [M + 1, M + 1]."""
        return self.sums / self.sums[-1, -1]

    @property
    def mean(self) -> Tensor:
        """The mean of x, [M]."""
        return self.augmented[-1, :-1]

    def spread(self, *, centred: bool) -> Tensor:
        """Return the second moment of x, of its differences from the mean if centred: [M, M]."""
        second = self.augmented[:-1, :-1]
        return second - self.mean[:, None] * self.mean if centred else second

    def permuted(self, order: Tensor) -> Moments:
        """Return the sums of inputs whose features stand in another order."""
        other = Moments(len(order))
        at = torch.cat([order, order.new_tensor([len(order)])])
        other.sums = self.sums[at][:, at]
        return other


def ridged(moment: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return a second moment with a little added to its diagonal, so that it can be inverted."""
    added = ridge * moment.diagonal().mean().clamp(min=1e-12)
    return moment + added * torch.eye(len(moment), dtype=moment.dtype)


def attentions(model: nn.Module) -> dict[str, Attention]:
    """Return the attention layers of a model by the names of their modules, in order."""
    return {name: one for name, one in model.named_modules() if isinstance(one, Attention)}


@contextmanager
def watched(layers: Mapping[str, Attention], seen: Seen) -> Iterator[None]:
    """Call `seen(name, x, where, y)` at each call of the layers, within the block.

    Raises:
        ConfigError: if a layer reads a memory.
    """

    def hook(name: str) -> Callable[..., None]:
        def told(_layer: nn.Module, given: tuple, where: dict[str, Any], y: Tensor) -> None:
            if len(given) > 1 or where.get("memory") is not None:
                raise ConfigError(
                    f"{name} attends to another sequence, of which nothing is learned from text; "
                    "only exact conversions are possible there."
                )
            seen(name, given[0], where, y)

        return told

    hooks = [one.register_forward_hook(hook(n), with_kwargs=True) for n, one in layers.items()]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


@torch.no_grad()
def gather(
    model: nn.Module,
    layers: Mapping[str, Attention],
    batches: Iterable[Tensor],
    step: Callable[[int], None] = lambda _done: None,
) -> dict[str, Moments]:
    """Return the moments of each layer's input over batches that the model is called with.

    Raises:
        DataError: if there is no batch, or a layer reads something that is no number.
    """
    found = {name: Moments(one.spec.d_model) for name, one in layers.items()}

    def seen(name: str, x: Tensor, where: dict[str, Any], _y: Tensor) -> None:
        found[name].add(x, where.get("valid"))

    done = 0
    with watched(layers, seen):
        for done, batch in enumerate(batches, start=1):
            model(batch)
            step(done)
    if not done:
        raise DataError("the calibration holds no batch; give text or inputs to learn from.")
    if odd := [name for name, one in found.items() if not bool(one.sums.isfinite().all())]:
        raise DataError(
            f"{odd[0] or 'the layer'} reads NaN or infinity on the calibration; give other text, "
            "or a model whose weights are numbers."
        )
    return found


LENGTH = 256  # tokens of a row at most
TOGETHER = 8  # rows of a batch


def batches(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return batches of the training part of a text, and half as much of its validation part.

    Args:
        corpus: the text.
        tokenizer: of the model.
        length: the longest row that the model reads, tokens.
        tokens: to learn from.

    Raises:
        DataError: if a part is shorter than one batch.

    Shapes:
        int64 [8, T] each, with T of 256 or length
    """
    length = min(length, LENGTH)
    learnt = _rows(corpus.train, corpus.train.name, tokenizer, length, tokens)
    held = _rows(corpus.validation, corpus.validation.name, tokenizer, length, tokens // 2)
    return learnt, held


def _rows(
    documents: Iterable[str], name: str, tokenizer: Tokenizer, length: int, tokens: int
) -> list[Tensor]:
    least = TOGETHER * length
    rows = rows_of(documents, tokenizer, length=length, tokens=max(tokens, least))
    if rows.numel() < least or rows.shape[1] < length:
        raise DataError(
            f"{name} gives {rows.numel():,} tokens in rows, less than one batch of {TOGETHER} rows "
            f"of {length}; give more text."
        )
    return list(rows.split(TOGETHER))
