"""A token at a time, each row its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from suffice.errors import ConfigError, unknown
from suffice.generate.prompts import Prompts
from suffice.generate.sampling import Choice
from suffice.memory import Memory
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.models.packed import told
from suffice.models.state import ModelState
from suffice.ops.native import library
from suffice.spec import AttentionSpec


class Sizes(Protocol):
    """What is asked of the sizes of a model."""

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""

    @property
    def length(self) -> int:
        """The longest row with learned positions."""

    @property
    def positions(self) -> str:
        """What is added to the tokens for where they stand."""


class Writer(Protocol):
    """A model that goes on from tokens, as `LM` does."""

    config: Sizes
    specs: Sequence[AttentionSpec]
    training: bool

    @property
    def device(self) -> torch.device:
        """Where tokens are read."""

    def state(self, memory: Memory) -> ModelState:
        """Return an empty state."""

    def features(self, tokens: Tensor, *, valid: Tensor | None = None, state: ModelState) -> Tensor:
        """Return what the head reads, [B, T, M], of tokens that go on from a state."""

    def logits(self, features: Tensor) -> Tensor:
        """Return the head's logits."""

    def step(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Return the logits [B, V] behind one more token [B] of each row."""

    def train(self, mode: bool = True) -> object:
        """Turn dropout on, or off."""


LEAST, WINDOWS = 1024, 4  # tokens of a piece: small ones make slow products


def piece_of(memory: Memory, chunk: int | None) -> int | None:
    """Return the tokens read at once: as asked, or a few windows' worth; None = all."""
    if chunk is not None or memory.window is None:
        return chunk
    return max(WINDOWS * memory.window, LEAST)


def read(lm: Writer, prompts: Prompts, state: ModelState, piece: int | None) -> Tensor:
    """Return the logits [B, V] behind the prompts, which the state has read then.

    Args:
        lm: the model.
        prompts: what is read.
        state: of the model, empty.
        piece: tokens read at once; None = all.
    """
    length = prompts.tokens.shape[1]
    step = piece or length
    for start in range(0, length, step):
        span = slice(start, start + step)
        valid = None if prompts.valid is None else prompts.valid[:, span]
        features = lm.features(prompts.tokens[:, span], valid=valid, state=state)
    return lm.logits(features[:, -1])


OnToken = Callable[[list[int | None]], None]


class Rows:
    """New tokens of a batch.

    Args:
        batch: B.
        new: N at most.
        stop: ids that end a row.
        pad: what stands behind its end.
        device: of the tokens.
        on_token: told the token of each row as it comes, None for rows that ended.
    """

    def __init__(
        self,
        batch: int,
        new: int,
        *,
        stop: tuple[int, ...],
        pad: int,
        device: torch.device,
        on_token: OnToken | None,
    ) -> None:
        self.tokens = torch.full((batch, new), pad, device=device)
        self.pad, self.on_token, self.ids = pad, on_token, stop
        self.stop = torch.tensor(stop, device=device) if stop else None
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self.count = 0  # columns written
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    def write(self, tokens: Tensor) -> bool:
        """Write the next token [B] of each row; return whether all rows have ended."""
        if self.stop is not None:
            tokens = tokens.masked_fill(self.ended, self.pad)
        self.tokens[:, self.count] = tokens
        self.lengths += ~self.ended
        self.count += 1
        if self.on_token is not None:
            ended = self.ended.tolist()
            pairs = zip(tokens.tolist(), ended, strict=True)
            self.on_token([None if end else token for token, end in pairs])
        if self.stop is None:
            return self.count == self.tokens.shape[1]
        self.ended |= (tokens[:, None] == self.stop).any(dim=1)
        return self.count == self.tokens.shape[1] or bool(self.ended.all())

    def only(self, row: int) -> Rows:
        """Return the book of one row, empty; `take` puts it in its place."""
        batch, new = self.tokens.shape
        told = None
        if self.on_token is not None:
            before, behind = [None] * row, [None] * (batch - row - 1)

            def told(tokens: list[int | None]) -> None:
                self.on_token([*before, *tokens, *behind])

        options = {"pad": self.pad, "device": self.tokens.device, "on_token": told}
        return Rows(1, new, stop=self.ids, **options)

    def take(self, one: Rows, row: int) -> None:
        """Put what was written into the book of one row into its place."""
        self.tokens[row], self.lengths[row] = one.tokens[0], one.lengths[0]
        self.count = max(self.count, one.count)


def write(
    lm: Writer, prompts: Prompts, state: ModelState, rows: Rows, choice: Choice, piece: int | None
) -> None:
    """Fill the rows.

    Args:
        lm: the model.
        prompts: what it goes on from.
        state: of the model, empty.
        rows: where new tokens are written.
        choice: of each token.
        piece: prompt tokens read at once; None = all.
    """
    tokens = choice(read(lm, prompts, state, piece))
    while not rows.write(tokens):
        tokens = choice(lm.step(tokens, state))


IMPLS = ("auto", "native", "torch")


def check_impl(impl: str) -> None:
    """Refuse what is no impl.

    Raises:
        ConfigError: naming those there are.
    """
    if impl not in IMPLS:
        raise unknown("impl", impl, IMPLS)


def stepping(model: Writer, memory: Memory, impl: str) -> tuple[Writer, str]:
    """Return what to step with, and how it steps, in words.

    Args:
        model: the model.
        memory: of its states.
        impl: "auto", "native" or "torch".

    Raises:
        ConfigError: for another impl, or a model that native code is asked for and cannot serve.
    """
    check_impl(impl)
    if isinstance(model, NativeDecoder):
        if impl == "torch":
            return model.lm, "torch (asked for)"
        return model, _natively()
    reason = "asked for" if impl == "torch" else unsupported(model, memory)
    if not reason:
        return NativeDecoder(model, memory), _natively()  # type: ignore[arg-type]
    if impl == "native":
        raise ConfigError(f"impl='native' is not possible: {reason}; give 'auto' or 'torch'.")
    maps = told(model, model.device.type)
    return model, f"torch ({reason})" + (f", {maps}" if maps else "")


def _natively() -> str:
    return f"native ({library.instructions()})"
