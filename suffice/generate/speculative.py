"""Speculative decoding: a small model drafts tokens, the large one verifies them in one call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.decoding import CausalModel, Output, Prompts, prefill
from suffice.generate.sampling import Sampler, Sampling, inverse_cdf, probabilities
from suffice.memory import Memory, Rolling
from suffice.models.state import ModelState
from suffice.spec import AttentionSpec


def accept(
    model: Tensor, draft: Tensor, drafted: Tensor, u_accept: Tensor, u_redraw: Tensor
) -> tuple[Tensor, Tensor]:
    """Return tokens [N] distributed as `model`, and whether each one is the drafted one, bool [N].

    A drafted token x is accepted with probability min(1, model(x) / draft(x)); else one is drawn
    from max(model - draft, 0), scaled to sum to 1. `draft` are the probabilities [N, V] that
    `drafted` was drawn with; u_accept and u_redraw are float64 [N], uniform in [0, 1).

    Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3. No difference.
    """
    p, q = (x.double().gather(-1, drafted[..., None])[..., 0] for x in (model, draft))
    accepted = u_accept * q < p
    rest = (model.double() - draft.double()).clamp(min=0.0)
    rest = rest.where(rest.sum(dim=-1, keepdim=True) > 0, model.double())
    return drafted.where(accepted, inverse_cdf(rest, u_redraw)), accepted


def check(
    lm: CausalModel, draft: CausalModel, drafts: int, memory: Memory, keep_state: bool
) -> Memory:
    """Return the memory with room to drop rejected drafts; raise for what cannot be drafted."""
    if keep_state:
        raise ConfigError("keep_state with draft: two models read the text; leave one out.")
    sizes = [model.config.vocabulary_size for model in (lm, draft)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the draft has {sizes[1]} tokens and the model {sizes[0]}; give one of the same "
            "vocabulary."
        )
    check_can_reject((*lm.specs, *draft.specs))
    if memory.lossy:
        raise ConfigError(
            f"{memory!r} with draft: in a memory that rounds, tokens read at once and one by one "
            "give different results; give one that does not."
        )
    if type(memory) is Rolling:
        return replace(memory, spare=max(memory.spare, drafts))
    return memory


def check_can_reject(specs: Iterable[AttentionSpec]) -> None:
    """Raise ConfigError for attention that cannot forget the tokens of a refused proposal."""
    for spec in specs:
        if sums := spec.beyond_pairs.get("past") or spec.beyond_pairs.get("kernel"):
            raise ConfigError(
                f"{type(sums).__name__} keeps sums, which no token can be taken out of, so "
                "drafts cannot be rejected; leave draft out."
            )


def decode(
    lm: CausalModel,
    draft: CausalModel,
    prompts: Prompts,
    output: Output,
    sampling: Sampling,
    memory: Memory,
    chunk: int | None,
    drafts: int,
) -> None:
    """Fill the output, one row after another, proposing `drafts` tokens at once."""
    for number in range(len(prompts.lengths)):
        prompt, row = prompts.row(number), output.row(number)
        vocabulary = lm.config.vocabulary_size
        sampler = Sampler(sampling, prompt.tokens, None, vocabulary, first=number)
        decoder = _SpeculativeRow(lm, draft, memory, sampler)
        tokens = decoder.prefill(prompt, chunk)
        while not any(row.append(token) for token in tokens):
            tokens = decoder.step(min(drafts, row.tokens.shape[1] - row.count - 1))
        output.set_row(number, row)


class _SpeculativeRow:
    """Both models on one row; the large one has read all of it but the last token."""

    def __init__(
        self, lm: CausalModel, draft: CausalModel, memory: Memory, sampler: Sampler
    ) -> None:
        self.lm, self.draft, self.sampler = lm, draft, sampler
        self.state: ModelState = lm.state(memory)
        self.draft_state: ModelState = draft.state(memory)
        self.unread: list[Tensor] = []  # by the draft, [1] each
        self.last: Tensor

    def prefill(self, prompt: Prompts, chunk: int | None) -> list[Tensor]:
        """Read the prompt; return the first token."""
        prefill(self.draft, prompt, self.draft_state, chunk)
        self.last = self.sampler(prefill(self.lm, prompt, self.state, chunk))
        self.unread = [self.last]
        return [self.last]

    def step(self, drafts: int) -> list[Tensor]:
        """Return the next tokens [1], at least one."""
        drafted, draft_probs = self._propose(drafts)
        line = torch.stack([self.last, *drafted], dim=1)
        logits = self.lm.logits(self.lm.features(line, state=self.state))[0]
        tokens: list[Tensor] = []
        for i, proposal in enumerate(drafted):
            token, accepted = self._verify(logits[i : i + 1], proposal, draft_probs[i])
            self.sampler.add(token)
            tokens.append(token)
            if not accepted:
                break
        else:
            tokens.append(self.sampler(logits[-1:]))
        accepted_count = len(tokens) - 1
        self.state.drop_last(drafts - accepted_count)
        # the draft has read all of its proposals but the last
        self.draft_state.drop_last(max(drafts - 1 - accepted_count, 0))
        self.last = tokens[-1]
        unread = drafted[-1:] if drafts and accepted_count == drafts else []
        self.unread = [*unread, self.last]
        return tokens

    def _propose(self, drafts: int) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return proposed tokens [1] and the probabilities [1, V] each was drawn with."""
        present = None if self.sampler.present is None else self.sampler.present.clone()
        drafted, probs = [], []
        for _ in range(drafts):
            if len(self.unread) == 1:
                logits = self.draft.step(self.unread[0], self.draft_state)
            else:
                line = torch.stack(self.unread, dim=1)
                features = self.draft.features(line, state=self.draft_state)
                logits = self.draft.logits(features[:, -1])
            token, token_probs = self.sampler.draw(logits, present)
            drafted.append(token)
            probs.append(token_probs)
            self.unread = [token]
            if present is not None:
                present.scatter_(1, token[:, None], True)
        return drafted, probs

    def _verify(
        self, logits: Tensor, proposal: Tensor, draft_probs: Tensor | None
    ) -> tuple[Tensor, bool]:
        """Return the token [1] in the place of a proposal, and whether it is the proposal."""
        if draft_probs is None:
            token, _ = self.sampler.draw(logits, self.sampler.present)
            return token, bool(token == proposal)
        probs = probabilities(logits, self.sampler.sampling, self.sampler.present)
        random = self.sampler.random
        token, accepted = accept(probs, draft_probs, proposal, random.next(), random.next())
        return token, bool(accepted)
