"""Token-by-token decoding: prompts as a batch, prefill, the sampled loop, beam search, backends.

Letters: B rows, T tokens of the longest prompt, N new tokens, K beams, C candidates, M d_model,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from suffice.errors import ConfigError, check_known
from suffice.generate.sampling import Sampler
from suffice.layers.inputs import check_rows
from suffice.memory import Memory
from suffice.models.lm import LMConfig
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.models.packed import packed_products
from suffice.models.state import ModelState
from suffice.ops.native import library
from suffice.spec import AttentionSpec

OnToken = Callable[[list[int | None]], None]
IMPLS = ("auto", "native", "torch")
MIN_CHUNK, CHUNK_WINDOWS = 1024, 4  # tokens of a prefill chunk: short ones make slow products


class CausalModel(Protocol):
    """A model that predicts the next token from a state, as `LM` does."""

    training: bool

    @property
    def config(self) -> LMConfig: ...

    @property
    def specs(self) -> Sequence[AttentionSpec]: ...

    @property
    def device(self) -> torch.device: ...

    def state(self, memory: Memory, /) -> ModelState: ...

    def features(self, tokens: Tensor, *, valid: Tensor | None = None, state: ModelState) -> Tensor:
        """Return the input of the head, [B, T, M], of tokens that continue a state."""
        ...

    def logits(self, features: Tensor, /) -> Tensor:
        """Return the head's logits."""
        ...

    def step(self, tokens: Tensor, state: ModelState, /) -> Tensor:
        """Return the logits [B, V] after one more token [B] of each row."""
        ...

    def train(self, mode: bool = True) -> object: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """Prompts as a batch [B, T]; shorter ones are padded on the left."""

    tokens: Tensor
    valid: Tensor | None  # True at real tokens; None: all are
    lengths: tuple[int, ...]  # real tokens of each row

    def row(self, row: int) -> Prompts:
        length = self.lengths[row]
        tokens = self.tokens[row : row + 1, self.tokens.shape[1] - length :]
        return Prompts(tokens=tokens, valid=None, lengths=(length,))


def batch_prompts(
    tokens: Tensor | Sequence[Sequence[int]],
    valid: Tensor | None,
    *,
    vocabulary_size: int,
    pad: int,
    device: torch.device,
) -> Prompts:
    """Return prompts as a batch, padded on the left with the id `pad`.

    Tokens are int [B, T], with valid bool [B, T] or None, or lists of ids of any lengths.
    """
    rows = _real_tokens(tokens, valid)
    lengths = tuple(map(len, rows))
    if not all(lengths) or not rows:
        what = f"prompt {lengths.index(0)} has no token" if rows else "no prompts"
        raise ConfigError(f"{what}; give at least one token to continue in each row.")
    longest = max(lengths)
    batch = torch.full((len(rows), longest), pad)
    for number, row in enumerate(rows):
        batch[number, longest - len(row) :] = row
    low, high = int(batch.min()), int(batch.max())
    if low < 0 or high >= vocabulary_size:
        raise ConfigError(
            f"prompts hold id {low if low < 0 else high}; give ids of 0 to {vocabulary_size - 1}."
        )
    real = None
    if min(lengths) < longest:
        starts = longest - torch.tensor(lengths)
        real = (torch.arange(longest) >= starts[:, None]).to(device)
    return Prompts(tokens=batch.to(device), valid=real, lengths=lengths)


def _real_tokens(tokens: Tensor | Sequence[Sequence[int]], valid: Tensor | None) -> list[Tensor]:
    if not isinstance(tokens, Tensor):
        if valid is not None:
            raise ConfigError("valid with lists of ids: give each row its own tokens only.")
        return [_ids(row) for row in tokens]
    check_rows("tokens", tokens, valid)
    if tokens.is_floating_point() or tokens.dtype is torch.bool:
        raise ConfigError(f"tokens have dtype {tokens.dtype}; ids are integers.")
    tokens = tokens.to("cpu", torch.int64)
    if valid is None:
        return list(tokens.unbind())
    return [row[real] for row, real in zip(tokens, valid.cpu(), strict=True)]


def _ids(row: Sequence[int]) -> Tensor:
    ids = None if isinstance(row, str) else torch.as_tensor(row)
    if ids is None or ids.dim() != 1:
        raise ConfigError(
            f"a prompt is {row!r:.60}; give a list of prompts, each the ids of a tokenizer, such "
            "as [[5, 2], [7]]."
        )
    if len(ids) and (ids.is_floating_point() or ids.dtype is torch.bool):
        raise ConfigError(f"a prompt has dtype {ids.dtype}; ids are integers.")
    return ids.to("cpu", torch.int64)


def prefill_chunk(memory: Memory, chunk: int | None) -> int | None:
    """Return how many prompt tokens are read at once: `chunk`, or a few windows; None: all."""
    if chunk is not None or memory.window is None:
        return chunk
    return max(CHUNK_WINDOWS * memory.window, MIN_CHUNK)


def prefill(lm: CausalModel, prompts: Prompts, state: ModelState, chunk: int | None) -> Tensor:
    """Read prompts into an empty state; return the logits [B, V] after their last tokens."""
    length = prompts.tokens.shape[1]
    for start in range(0, length, chunk or length):
        span = slice(start, start + (chunk or length))
        valid = None if prompts.valid is None else prompts.valid[:, span]
        features = lm.features(prompts.tokens[:, span], valid=valid, state=state)
    return lm.logits(features[:, -1])


class Output:
    """The new tokens of a batch: at most `new` of each row, then `pad` after an id of `stop`.

    `on_token` receives the token of each row as it is written, None for rows that ended.
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
        self.pad, self.on_token, self.stop = pad, on_token, stop
        self.stop_ids = torch.tensor(stop, device=device) if stop else None
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self.count = 0  # columns written
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    def append(self, tokens: Tensor) -> bool:
        """Write the next token [B] of each row; return whether all rows have ended."""
        if self.stop_ids is not None:
            tokens = tokens.masked_fill(self.ended, self.pad)
        self.tokens[:, self.count] = tokens
        self.lengths += ~self.ended
        self.count += 1
        if self.on_token is not None:
            pairs = zip(tokens.tolist(), self.ended.tolist(), strict=True)
            self.on_token([None if ended else token for token, ended in pairs])
        full = self.count == self.tokens.shape[1]
        if self.stop_ids is None:
            return full
        self.ended |= (tokens[:, None] == self.stop_ids).any(dim=1)
        return full or bool(self.ended.all())

    def row(self, row: int) -> Output:
        """Return an empty output of one row; `set_row` puts it in its place."""
        batch, new = self.tokens.shape
        on_token = None
        if self.on_token is not None:
            before, after = [None] * row, [None] * (batch - row - 1)

            def on_token(tokens: list[int | None]) -> None:
                self.on_token([*before, *tokens, *after])

        options = {"pad": self.pad, "device": self.tokens.device, "on_token": on_token}
        return Output(1, new, stop=self.stop, **options)

    def set_row(self, row: int, output: Output) -> None:
        """Copy an output of one row into this row."""
        self.tokens[row], self.lengths[row] = output.tokens[0], output.lengths[0]
        self.count = max(self.count, output.count)


def decode(
    lm: CausalModel,
    prompts: Prompts,
    state: ModelState,
    output: Output,
    sampler: Sampler,
    chunk: int | None,
) -> None:
    """Fill the output, one token of each row at a time; `chunk` prompt tokens are read at once."""
    tokens = sampler(prefill(lm, prompts, state, chunk))
    while not output.append(tokens):
        tokens = sampler(lm.step(tokens, state))


def choose_backend(lm: CausalModel, memory: Memory, impl: str) -> tuple[CausalModel, str]:
    """Return the model to decode with, native or torch, and a description of the choice."""
    check_known("impl", impl, IMPLS)
    native = f"native ({library.instructions()})" if library.available() else ""
    if isinstance(lm, NativeDecoder):
        return (lm.lm, "torch (asked for)") if impl == "torch" else (lm, native)
    reason = "asked for" if impl == "torch" else unsupported(lm, memory)
    if not reason:
        return NativeDecoder(lm, memory, checked=True), native  # type: ignore[arg-type]
    if impl == "native":
        raise ConfigError(f"impl='native' is not possible: {reason}; give 'auto' or 'torch'.")
    products = packed_products(lm, lm.device.type)
    return lm, f"torch ({reason})" + (f", {products}" if products else "")


def beam_search(
    lm: CausalModel,
    prompts: Prompts,
    state: ModelState,
    output: Output,
    beams: int,
    length_penalty: float,
    chunk: int | None,
) -> Tensor:
    """Fill the output with the best continuation of each row; return the scores [B].

    A continuation's score is the sum of the log-probabilities of its n tokens, the stop id
    included, over n^length_penalty. At every step the best K continuations of a row that do not end
    go on; of those that end, the best K so far are kept as hypotheses. A row is done when it has K
    hypotheses and no running continuation can become better than the worst of them.
    """
    logits = prefill(lm, prompts, state, chunk)
    state.repeat(beams)
    hypotheses = BeamHypotheses(output, beams, length_penalty)
    tokens = hypotheses.step(logits.repeat_interleave(beams, dim=0))
    while tokens is not None:
        if hypotheses.parents is not None:
            state.reorder(hypotheses.parents)
        tokens = hypotheses.step(lm.step(tokens, state))
    return hypotheses.finish()


class BeamHypotheses:
    """The running continuations and the finished hypotheses of each row."""

    def __init__(self, output: Output, beams: int, length_penalty: float) -> None:
        self.output, self.beams, self.length_penalty = output, beams, length_penalty
        batch, new = output.tokens.shape
        device = output.tokens.device
        # of the running continuations; at first all are copies of the prompt, and one goes on
        self.sums = torch.full((batch, beams), -torch.inf, device=device)
        self.sums[:, 0] = 0.0
        self.running = torch.full((batch, beams, new), output.pad, device=device)
        # of the hypotheses, best first
        self.scores = torch.full((batch, beams), -torch.inf, device=device)
        self.tokens = self.running.clone()
        self.lengths = torch.zeros(batch, beams, dtype=torch.int64, device=device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.parents: Tensor | None = None  # [B K], rows to reorder the state by; None: as it is
        self.count = 0
        self.first = torch.arange(batch, device=device)[:, None] * beams

    def step(self, logits: Tensor) -> Tensor | None:
        """Extend by one token, given logits [B K, V]; return the next [B K], None at the end."""
        batch, new = self.output.tokens.shape
        log_probs = logits.float().log_softmax(dim=-1).view(batch, self.beams, -1)
        sums, ids, parents = self._candidates(self.sums[..., None] + log_probs)
        self.count += 1
        ends = torch.zeros_like(ids, dtype=torch.bool)
        if self.output.stop_ids is not None:
            ends = torch.isin(ids, self.output.stop_ids)
        texts = self.running.gather(1, parents[..., None].expand(-1, -1, new))
        texts[:, :, self.count - 1] = ids
        last = self.count == new
        self._add(sums.masked_fill(~(ends | last), -torch.inf), texts)
        self.sums, order = sums.masked_fill(ends, -torch.inf).topk(self.beams, dim=1)
        self.running = texts.gather(1, order[..., None].expand(-1, -1, new))
        # sums only fall: the best running one attains at most this score
        attainable = self.sums.amax(dim=1) / new**self.length_penalty
        self.done |= self.scores.amin(dim=1) >= attainable
        if last or bool(self.done.all()):
            return None
        parents = (parents.gather(1, order) + self.first).flatten()
        unchanged = torch.equal(parents, torch.arange(len(parents), device=parents.device))
        self.parents = None if unchanged else parents
        return ids.gather(1, order).flatten()

    def _candidates(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums, tokens and beams [B, C] of the best steps, at least K of which go on."""
        vocabulary = sums.shape[2]
        count = min(self.beams * (1 + len(self.output.stop)), self.beams * vocabulary)
        sums, indices = sums.flatten(1).topk(count, dim=1)
        return sums, indices % vocabulary, indices // vocabulary

    def _add(self, sums: Tensor, texts: Tensor) -> None:
        """Add continuations [B, C] that have ended; keep the best K of a row that is not done."""
        scores = sums / self.count**self.length_penalty
        scores = scores.masked_fill(self.done[:, None], -torch.inf)
        self.scores, order = torch.cat([self.scores, scores], dim=1).topk(self.beams, dim=1)
        texts = torch.cat([self.tokens, texts], dim=1)
        self.tokens = texts.gather(1, order[..., None].expand(-1, -1, texts.shape[2]))
        lengths = torch.full_like(sums, self.count, dtype=torch.int64)
        self.lengths = torch.cat([self.lengths, lengths], dim=1).gather(1, order)

    def finish(self) -> Tensor:
        """Write the best hypothesis of each row; return the scores [B]."""
        scores, best = self.scores.max(dim=1)
        rows = torch.arange(len(best), device=best.device)
        self.output.lengths = self.lengths[rows, best]
        self.output.count = int(self.output.lengths.max())
        self.output.tokens = self.tokens[rows, best]
        return scores
