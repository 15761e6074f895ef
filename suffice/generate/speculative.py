"""A small model proposes tokens, the large one reads them at once and keeps those that stand."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.generate.decoding import Rows, Writer, read
from suffice.generate.prompts import Prompts
from suffice.generate.sampling import Choice, Greedy, Sampling, penalised, pick, probabilities
from suffice.memory import Memory, Rolling
from suffice.models.state import ModelState


def accept(
    model: Tensor, draft: Tensor, drafted: Tensor, at: Tensor, again: Tensor
) -> tuple[Tensor, Tensor]:
    """Return tokens distributed as `model`, and whether each one is the drafted one.

    A drafted token x stands with probability min(1, model(x) / draft(x)); else one is drawn from
    max(model - draft, 0), scaled to sum to 1.

    Args:
        model: probabilities [N, V].
        draft: probabilities [N, V] that `drafted` was drawn with.
        drafted: int [N].
        at: float64 [N] in [0, 1), decides.
        again: float64 [N] in [0, 1), draws.

    Returns:
        int [N] and bool [N].

    Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3. No difference.
    """
    wanted, proposed = (p.double().gather(-1, drafted[..., None])[..., 0] for p in (model, draft))
    stands = at * proposed < wanted
    rest = (model.double() - draft.double()).clamp(min=0.0)
    other = pick(rest.where(rest.sum(dim=-1, keepdim=True) > 0, model.double()), again)
    return drafted.where(stands, other), stands


def check(lm: Writer, draft: Writer, drafts: int, memory: Memory, keep_state: bool) -> Memory:
    """Return the memory with room to take drafts back.

    Raises:
        ConfigError: if the models do not share a vocabulary, a layer cannot take tokens back, the
            memory is coded, or a number is below 1.
    """
    if drafts < 1:
        raise ConfigError(f"drafts={drafts}: give at least 1.")
    if keep_state:
        raise ConfigError("keep_state beside draft: two models read the text; leave one out.")
    sizes = [model.config.vocabulary_size for model in (lm, draft)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the draft has {sizes[1]} tokens and the model {sizes[0]}; give one of the same "
            "vocabulary."
        )
    for spec in (*lm.specs, *draft.specs):
        sums = spec.past if spec.past.reads else spec.kernel
        if spec.past.reads or not spec.kernel.weighs_pairs:
            raise ConfigError(
                f"{type(sums).__name__} keeps sums, which no token can be taken out of, so "
                "drafts cannot be refused; leave draft out."
            )
    if memory.rounds:
        raise ConfigError(
            f"{memory!r} beside draft: what is read at once and one by one differs in a memory "
            "that rounds; give one that does not."
        )
    if isinstance(memory, Rolling):
        return replace(memory, spare=max(memory.spare, drafts))
    return memory


def write(
    lm: Writer,
    draft: Writer,
    prompts: Prompts,
    rows: Rows,
    sampling: Sampling,
    memory: Memory,
    piece: int | None,
    drafts: int,
) -> None:
    """Fill the rows, one after another.

    Args:
        lm: the model.
        draft: the one that proposes.
        prompts: what they go on from.
        rows: where new tokens are written.
        sampling: how tokens are chosen.
        memory: of both models, with room for `drafts`.
        piece: prompt tokens read at once; None = all.
        drafts: proposed at once.
    """
    for number in range(len(prompts.lengths)):
        prompt = prompts.row(number)
        choice = Choice(sampling, prompt, lm.config.vocabulary_size, first=number)
        row = rows.only(number)
        pair = _Pair(lm, draft, prompt, memory, choice)
        tokens = pair.begin(piece)
        while not _written(row, tokens):
            tokens = pair.round(min(drafts, row.tokens.shape[1] - row.count - 1))
        rows.take(row, number)


def _written(row: Rows, tokens: list[Tensor]) -> bool:
    """Write tokens until the row ends; return whether it has."""
    return any(row.write(token) for token in tokens)


class _Pair:
    """Two models at one row; the large one has read all of it but the last token.

    Args:
        lm: the large one.
        draft: the small one.
        prompt: one row.
        memory: of both.
        choice: of tokens.
    """

    def __init__(
        self, lm: Writer, draft: Writer, prompt: Prompts, memory: Memory, choice: Choice
    ) -> None:
        self.lm, self.draft, self.choice, self.prompt = lm, draft, choice, prompt
        self.states: tuple[ModelState, ModelState] = lm.state(memory), draft.state(memory)
        self.unread: list[Tensor] = []  # by the draft, [1] each
        self.last = prompt.tokens[:, -1]

    def begin(self, piece: int | None) -> list[Tensor]:
        """Read the prompt and return the first token."""
        read(self.draft, self.prompt, self.states[1], piece)
        return self._went_on([self.choice(read(self.lm, self.prompt, self.states[0], piece))])

    def _went_on(self, tokens: list[Tensor]) -> list[Tensor]:
        self.last = tokens[-1]
        self.unread.append(self.last)
        return tokens

    def round(self, drafts: int) -> list[Tensor]:
        """Return the next tokens [1], at least one."""
        drafted, shares = self._propose(drafts)
        line = torch.stack([self.last, *drafted], dim=1)
        logits = self.lm.logits(self.lm.features(line, state=self.states[0]))[0]
        tokens: list[Tensor] = []
        for at, proposal in enumerate(drafted):
            token, stands = self._judge(logits[at : at + 1], proposal, shares[at])
            self.choice.note(token)
            tokens.append(token)
            if not stands:
                break
        else:
            tokens.append(self.choice(logits[-1:]))
        stood = len(tokens) - 1
        self.states[0].drop_last(drafts - stood)
        self.states[1].drop_last(max(drafts - 1 - stood, 0))
        # of the drafts the small model read all but the last
        self.unread = drafted[-1:] if drafts and stood == drafts else []
        return self._went_on(tokens)

    def _propose(self, drafts: int) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return proposed tokens [1] and the probabilities [1, V] each was drawn with."""
        seen = None if self.choice.seen is None else self.choice.seen.clone()
        drafted, shares = [], []
        for _ in range(drafts):
            logits = self._read_drafts()
            token, share = self._draw(logits, seen)
            drafted.append(token)
            shares.append(share)
            self.unread = [token]
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
        return drafted, shares

    def _read_drafts(self) -> Tensor:
        """Return the draft's logits [1, V] behind what it has not read yet."""
        if len(self.unread) == 1:
            return self.draft.step(self.unread[0], self.states[1])
        line = torch.stack(self.unread, dim=1)
        return self.draft.logits(self.draft.features(line, state=self.states[1])[:, -1])

    def _draw(self, logits: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        sampling = self.choice.sampling
        if isinstance(sampling, Greedy):
            scores = penalised(logits.float(), seen, sampling.repetition_penalty)
            return scores.argmax(dim=-1), None
        share = probabilities(logits, sampling, seen)
        return pick(share, self.choice.draws.next()), share

    def _judge(self, logits: Tensor, proposal: Tensor, share: Tensor | None) -> tuple[Tensor, bool]:
        """Return the token [1] that stands in the place of a proposal, and whether that is it."""
        if share is None:
            token, _ = self._draw(logits, self.choice.seen)
            return token, bool(token == proposal)
        model = probabilities(logits, self.choice.sampling, self.choice.seen)
        draws = self.choice.draws
        token, stands = accept(model, share, proposal, draws.next(), draws.next())
        return token, bool(stands)
