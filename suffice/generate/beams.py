"""Beam search: several continuations of each row are followed, the best one is given.

Letters: B rows, K beams, N new tokens, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.decoding import OnToken, Rows, Writer, read
from suffice.generate.prompts import Prompts
from suffice.generate.sampling import Greedy, Sampling
from suffice.models.state import ModelState


def check(
    beams: int,
    sampling: Sampling,
    length_penalty: float,
    draft: Writer | None,
    on_token: OnToken | None,
    keep_state: bool,
) -> None:
    """Refuse what does not go with a search, and a penalty without one.

    Raises:
        ConfigError: naming it.
    """
    if beams < 1:
        raise ConfigError(f"beams={beams}: give at least 1, which searches nothing.")
    if not 0.0 <= length_penalty < math.inf:
        raise ConfigError(f"length_penalty={length_penalty}: give a number of at least 0.")
    if beams == 1:
        if length_penalty != 1.0:
            raise ConfigError(f"length_penalty={length_penalty} without beams; give beams=2 or so.")
        return
    given = {
        f"sampling={sampling!r}": sampling != Greedy(),
        "draft": draft is not None,
        "on_token": on_token is not None,
        "keep_state": keep_state,
    }
    beside = [name for name, there in given.items() if there]
    if beside:
        raise ConfigError(
            f"beams={beams} beside {' and '.join(beside)}: a search follows the model's own "
            "probabilities and knows its tokens at its end; leave one out."
        )


def search(
    lm: Writer,
    prompts: Prompts,
    state: ModelState,
    rows: Rows,
    beams: int,
    length_penalty: float,
    piece: int | None,
) -> Tensor:
    """Fill the rows; return their scores [B].

    A continuation's score is the sum of the log-probabilities of its n tokens, the stop id
    included, over n^length_penalty. At every step the best K continuations of a row that do not end
    go on; those that end are kept, the best K of them. A row is finished when K are kept and no
    other could become better than the worst of them.

    Args:
        lm: the model.
        prompts: what it goes on from.
        state: of the model, empty.
        rows: where the best continuation of each row is written.
        beams: K.
        length_penalty: power of the length.
        piece: prompt tokens read at once; None = all.
    """
    logits = read(lm, prompts, state, piece)
    state.repeat(beams)
    book = _Book(rows, beams, length_penalty)
    tokens = book.step(logits.repeat_interleave(beams, dim=0))
    while tokens is not None:
        if book.moved is not None:
            state.reorder(book.moved)
        tokens = book.step(lm.step(tokens, state))
    return book.close()


class _Book:
    """Running and kept continuations of each row.

    Args:
        rows: of the call.
        beams: K.
        length_penalty: power of the length.
    """

    def __init__(self, rows: Rows, beams: int, length_penalty: float) -> None:
        self.rows, self.beams, self.power = rows, beams, length_penalty
        batch, new = rows.tokens.shape
        device = rows.tokens.device
        self.scores = torch.full((batch, beams), -torch.inf, device=device)
        self.scores[:, 0] = 0.0  # copies of a prompt: one goes on
        self.written = torch.full((batch, beams, new), rows.pad, device=device)
        self.kept = torch.full((batch, beams), -torch.inf, device=device)
        self.kept_tokens = self.written.clone()
        self.kept_lengths = torch.zeros(batch, beams, dtype=torch.int64, device=device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.moved: Tensor | None = None
        self.count = 0
        self.first = torch.arange(batch, device=device)[:, None] * beams

    def step(self, logits: Tensor) -> Tensor | None:
        """Go on by one token, chosen by logits [B K, V]; return the next [B K], None at the end."""
        batch, new = self.rows.tokens.shape
        steps = logits.float().log_softmax(dim=-1).view(batch, self.beams, -1)
        sums, ids, parents = self._best(self.scores[..., None] + steps)
        self.count += 1
        ends = torch.zeros_like(ids, dtype=torch.bool)
        if self.rows.stop is not None:
            ends = torch.isin(ids, self.rows.stop)
        texts = self.written.gather(1, parents[..., None].expand(-1, -1, new))
        texts[:, :, self.count - 1] = ids
        last = self.count == new
        self._keep(sums.masked_fill(~(ends | last), -torch.inf), texts)
        self.scores, order = sums.masked_fill(ends, -torch.inf).topk(self.beams, dim=1)
        self.written = texts.gather(1, order[..., None].expand(-1, -1, new))
        self._finish(new)
        if last or bool(self.done.all()):
            return None
        parents = (parents.gather(1, order) + self.first).flatten()
        still = torch.equal(parents, torch.arange(len(parents), device=parents.device))
        self.moved = None if still else parents
        return ids.gather(1, order).flatten()

    def _best(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums, tokens and beams of enough best steps that K of them do not end."""
        vocabulary = sums.shape[2]
        enough = min(self.beams * (1 + len(self.rows.ids)), self.beams * vocabulary)
        sums, at = sums.flatten(1).topk(enough, dim=1)
        return sums, at % vocabulary, at // vocabulary

    def _keep(self, sums: Tensor, texts: Tensor) -> None:
        """Keep continuations [B, C] that have ended, the best K of a row that is not done."""
        scores = (sums / self.count**self.power).masked_fill(self.done[:, None], -torch.inf)
        scores, order = torch.cat([self.kept, scores], dim=1).topk(self.beams, dim=1)
        lengths = torch.full_like(sums, self.count, dtype=torch.int64)
        texts = torch.cat([self.kept_tokens, texts], dim=1)
        self.kept = scores
        self.kept_tokens = texts.gather(1, order[..., None].expand(-1, -1, texts.shape[2]))
        self.kept_lengths = torch.cat([self.kept_lengths, lengths], dim=1).gather(1, order)

    def _finish(self, new: int) -> None:
        """Mark rows that no running continuation can better: sums only fall."""
        attainable = self.scores.amax(dim=1) / new**self.power
        self.done |= self.kept.amin(dim=1) >= attainable

    def close(self) -> Tensor:
        """Write the best continuation of each row; return the scores [B]."""
        scores, best = self.kept.max(dim=1)
        rows = torch.arange(len(best), device=best.device)
        self.rows.lengths = self.kept_lengths[rows, best]
        self.rows.count = int(self.rows.lengths.max())
        self.rows.tokens = self.kept_tokens[rows, best]
        return scores
