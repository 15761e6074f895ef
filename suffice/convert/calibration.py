"""Calibration statistics: means and second moments of the inputs of attention layers, in float64.

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
from suffice.layers.inputs import SharedKV
from suffice.models import LM
from suffice.quantise.report import rows_of
from suffice.text import Corpus, Documents, Tokenizer

RIDGE = 1e-5  # of the mean of the diagonal
ROW_LENGTH = 256  # tokens of a calibration row at most
BATCH_SIZE = 8  # rows of a calibration batch

OnCall = Callable[[str, Tensor, dict[str, Any], Tensor], None]
"""Takes the name of a layer, its input, the keyword arguments of the call, and its output."""


class Moments:
    """Sums over the inputs [x 1] of one layer, of M features each, without padding."""

    def __init__(self, inputs: int) -> None:
        self.sums = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)

    def add(self, x: Tensor, valid: Tensor | None) -> None:
        """Add inputs [B, T, M]; valid [B, T], True = real."""
        rows = x.detach().flatten(0, 1) if valid is None else x.detach()[valid]
        rows = torch.nn.functional.pad(rows.double().cpu(), (0, 1), value=1.0)
        self.sums += rows.T @ rows

    @property
    def count(self) -> int:
        return round(float(self.sums[-1, -1]))

    @property
    def augmented(self) -> Tensor:
        """The second moment of [x 1], [M + 1, M + 1]."""
        return self.sums / self.sums[-1, -1]

    @property
    def mean(self) -> Tensor:
        return self.augmented[-1, :-1]

    def second(self, *, centred: bool) -> Tensor:
        """Return the second moment of x, or its covariance if centred: [M, M]."""
        second = self.augmented[:-1, :-1]
        return second - self.mean[:, None] * self.mean if centred else second

    @classmethod
    def of(cls, sums: Tensor) -> Moments:
        """Return moments with these sums [M + 1, M + 1]."""
        moments = cls(0)
        moments.sums = sums
        return moments

    def permuted(self, order: Tensor) -> Moments:
        rows = torch.cat([order, order.new_tensor([len(order)])])
        return Moments.of(self.sums[rows][:, rows])


def with_ridge(moment: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return a second moment plus a multiple of the identity, so that it can be inverted."""
    scale = ridge * moment.diagonal().mean().clamp(min=1e-12)
    return moment + scale * torch.eye(len(moment), dtype=moment.dtype)


def attention_layers(model: nn.Module) -> dict[str, Attention]:
    """Return the attention layers of a model by the names of their modules, in order."""
    return {name: one for name, one in model.named_modules() if isinstance(one, Attention)}


@contextmanager
def observing(layers: Mapping[str, Attention], on_call: OnCall) -> Iterator[None]:
    """Call `on_call` after each call of the layers, which must attend to their own input."""

    def hook(name: str) -> Callable[..., None]:
        def called(_layer: nn.Module, args: tuple, kwargs: dict[str, Any], y: Tensor) -> None:
            if len(args) > 1 or kwargs.get("source") is not None:
                raise ConfigError(
                    f"{name} attends to another sequence, for which there are no calibration "
                    "statistics; only exact conversions are possible there."
                )
            on_call(name, args[0], kwargs, y)

        return called

    hooks = [one.register_forward_hook(hook(n), with_kwargs=True) for n, one in layers.items()]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def read_batch(model: nn.Module, batch: Tensor) -> None:
    """Call a model's layers with a batch; the head of a language model is left out."""
    (model.features if isinstance(model, LM) else model)(batch)


class Replay:
    """Calls layers of a model with recorded inputs of another's; sharing ones use replayed keys."""

    def __init__(self, layers: Mapping[str, Attention], wanted: Iterable[str]) -> None:
        order = list(layers)
        shares = {name: layers[name].spec.shares for name in wanted}
        self.layers = layers
        self.maker_of = {n: n if at is None else order[at] for n, at in shares.items()}
        makers = [maker for name, maker in self.maker_of.items() if maker != name]
        self.shared = {maker: SharedKV() for maker in makers}
        self.names = tuple(dict.fromkeys((*shares, *self.shared)))

    def __call__(self, name: str, x: Tensor, call: Mapping[str, Any]) -> Tensor:
        shared = self.shared.get(self.maker_of.get(name, name))
        return self.layers[name].forward(x, **{**call, "shared": shared})


@torch.no_grad()
def collect_moments(
    model: nn.Module,
    layers: Mapping[str, Attention],
    batches: Iterable[Tensor],
    step: Callable[[int], None] = lambda _done: None,
) -> dict[str, Moments]:
    """Return the moments of each layer's input over batches that the model is called with."""
    moments = {name: Moments(layer.spec.d_model) for name, layer in layers.items()}

    def add(name: str, x: Tensor, call: dict[str, Any], _y: Tensor) -> None:
        moments[name].add(x, call.get("valid"))

    done = 0
    with observing(layers, add):
        for done, batch in enumerate(batches, start=1):
            read_batch(model, batch)
            step(done)
    check_read(done, {name: one.sums for name, one in moments.items()})
    return moments


def relative_error(output: Tensor, wanted: Tensor, valid: Tensor | None) -> Tensor:
    """Return the squared error of a layer's output as a share of the energy that is wanted."""
    output, wanted = output.float(), wanted.float()
    if valid is not None:
        output, wanted = output[valid], wanted[valid]
    return (output - wanted).square().sum() / wanted.square().sum().clamp(min=1e-12)


def check_read(batches: int, sums: Mapping[str, Tensor]) -> None:
    """Raise DataError if a calibration held no batch, or sums over it are not finite."""
    if not batches:
        raise DataError("the calibration holds no batch; give text or inputs to fit on.")
    for name, one in sums.items():
        if not bool(one.isfinite().all()):
            raise DataError(
                f"the input of {name or 'the layer'} holds NaN or infinity on the calibration; "
                "give other text, or a model with finite weights."
            )


def calibration_batches(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return batches int64 [8, T] of the training part, and half of them of the validation part."""
    length = min(length, ROW_LENGTH)
    fitted = _batches(corpus.train, tokenizer, length, tokens)
    return fitted, _batches(corpus.validation, tokenizer, length, tokens // 2)


def _batches(documents: Documents, tokenizer: Tokenizer, length: int, tokens: int) -> list[Tensor]:
    minimum = BATCH_SIZE * length
    rows = rows_of(documents, tokenizer, length=length, tokens=max(tokens, minimum))
    if rows.numel() < minimum or rows.shape[1] < length:
        raise DataError(
            f"{documents.name} gives {rows.numel():,} tokens in rows, less than one batch of "
            f"{BATCH_SIZE} rows of {length}; give more text."
        )
    return list(rows.split(BATCH_SIZE))
