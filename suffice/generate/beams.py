"""Beam search: follow several continuations of each row, return the best one.

Letters: B rows, K beams, C candidates, N new tokens, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.decoding import CausalModel, OnToken, Output, Prompts, prefill
from suffice.generate.sampling import Greedy, Sampling
from suffice.models.state import ModelState


def check(
    beams: int,
    sampling: Sampling,
    length_penalty: float,
    draft: CausalModel | None,
    on_token: OnToken | None,
    keep_state: bool,
) -> None:
    """Raise for arguments that do not go with a search, and a penalty without one.

    Raises:
        ConfigError: naming them.
    """
    if not 0.0 <= length_penalty < math.inf:
        raise ConfigError(f"length_penalty={length_penalty}: give a number of at least 0.")
    if beams == 1:
        if length_penalty != 1.0:
            raise ConfigError(f"length_penalty={length_penalty} without beams; give beams=2 or so.")
        return
    excluded = {
        f"sampling={sampling!r}": sampling != Greedy(),
        "draft": draft is not None,
        "on_token": on_token is not None,
        "keep_state": keep_state,
    }
    if names := [name for name, present in excluded.items() if present]:
        raise ConfigError(
            f"beams={beams} beside {' and '.join(names)}: a search follows the model's own "
            "probabilities and knows its tokens at its end; leave one out."
        )


def search(
    lm: CausalModel,
    prompts: Prompts,
    state: ModelState,
    output: Output,
    beams: int,
    length_penalty: float,
    chunk: int | None,
) -> Tensor:
    """Fill the output; return the scores [B].

    A continuation's score is the sum of the log-probabilities of its n tokens, the stop id
    included, over n^length_penalty. At every step the best K continuations of a row that do not end
    go on; of those that end, the best K so far are kept as hypotheses. A row is done when it has K
    hypotheses and no running continuation can become better than the worst of them.

    Args:
        lm: the model.
        prompts: to continue.
        state: of the model, empty.
        output: where the best continuation of each row is written.
        beams: K.
        length_penalty: power of the length.
        chunk: prompt tokens read at once; None = all.
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
    """The running continuations and the finished hypotheses of each row.

    Args:
        output: of the call.
        beams: K.
        length_penalty: power of the length.
    """

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
        self.parents: Tensor | None = None  # [B K], rows to reorder the state by; None = as it is
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
