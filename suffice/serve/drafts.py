"""Proposals of the next tokens, which the model checks in one call, where that is faster.

The model chooses every token itself, and a proposal only decides how many choices one call gives:
a text is the same with and without it. Checking costs more than a step, so it pays only where
enough proposals are right; that is measured while texts are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from suffice.generate.decoding import CausalModel, choose_backend
from suffice.generate.generate import max_length
from suffice.generate.speculative import check_can_reject
from suffice.memory import Dynamic

LENGTHS = (4, 8, 16, 32)  # of proposals, which are cut only where a text ends
DRAFT_TOKENS = LENGTHS[0]  # proposed by a model
FIRST = LENGTHS[1]  # tokens of a proposal that is only compared
NGRAM = 3  # tokens that have to recur
LEARNING = 0.3  # weight of the latest measurement in a mean
MARGIN = 1.05  # by which proposals must be faster
FORGET, DOUBT = 1000, 0.8  # after so many steps without one, a check is taken to cost this share
TRIAL = 4  # proposals of a draft before it is judged
PAUSE, LONGEST_PAUSE = 32, 4096  # steps without a draft that did not pay


class Drafts(Protocol):
    """Proposals for one text."""

    def add(self, token: int) -> None:
        """Receive a new token of the text."""
        ...

    def propose(self, most: int, payoff: Payoff) -> list[int]:
        """Return at most so many next tokens; none where checking them would not pay."""
        ...

    def checked(self, accepted: int, payoff: Payoff) -> None:
        """Learn how many tokens of the latest proposal were right."""
        ...


class Drafter(Protocol):
    """Makes proposals for texts."""

    def begin(self, prompt: Sequence[int]) -> Drafts:
        """Return the proposals for a text that begins with a prompt."""
        ...


class Payoff:
    """What a step and the check of a proposal take.

    Args:
        step: seconds of a step that writes one token.
        checks: seconds of a proposal and its check, by the number of its tokens.

    Example:
        >>> payoff = Payoff(1.0, {4: 2.0, 8: 3.0})
        >>> payoff.best(right=0.5), payoff.best(right=4.0), payoff.best(right=7.0)
        (0, 4, 8)
    """

    def __init__(self, step: float, checks: Mapping[int, float]) -> None:
        self.step, self.checks = step, dict(checks)
        self._steps = 0  # since the latest check

    def stepped(self, seconds: float) -> None:
        """Learn the time of a step."""
        self.step = _mean(self.step, seconds)
        self._steps += 1
        if self._steps >= FORGET:
            self.checks = {length: DOUBT * check for length, check in self.checks.items()}
            self._steps = 0

    def checked(self, length: int, seconds: float) -> None:
        """Learn the time of a proposal and its check."""
        if length in self.checks:
            self.checks[length] = _mean(self.checks[length], seconds)
            self._steps = 0

    def gain(self, length: int, right: float) -> float:
        """Return how much faster than steps proposals are, so many tokens of which are right."""
        return (min(right, length) + 1) * self.step / self.checks[length]

    def best(self, right: float) -> int:
        """Return the length of proposals that pays best, 0 if none does."""
        length = max(self.checks, key=lambda length: self.gain(length, right))
        return length if self.gain(length, right) > MARGIN else 0


def _mean(before: float, value: float) -> float:
    return before + LEARNING * (value - before)


class Lookup:
    """Proposes what followed the latest tokens where they stood before: prompt lookup.

    Proposals that are not checked are compared with what is written, so that a text in which
    nothing recurs is written as if there were none.

    Source: Saxena 2023, prompt lookup decoding. Differs: it switches itself off.
    """

    def begin(self, prompt: Sequence[int]) -> Drafts:
        """Return the proposals for a text that begins with a prompt."""
        return LookupDrafts(prompt)


class LookupDrafts:
    """The proposals of `Lookup` for one text.

    Example:
        >>> drafts = LookupDrafts([1, 2, 3, 4, 5, 1, 2, 3])
        >>> drafts.find(6)
        [4, 5, 1, 2, 3, 4]
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.text: list[int] = []
        self.follows: dict[tuple[int, ...], int] = {}  # place behind the latest such tokens
        self.mean = 0.0  # tokens of a proposal that are right
        self.unchecked: list[int] = []  # a proposal that is compared with what is written
        self.right = 0  # tokens of it that were
        self.length = 0  # of the latest proposal that is checked
        for token in prompt:
            self._append(token)

    def _append(self, token: int) -> None:
        if len(self.text) >= NGRAM:
            self.follows[tuple(self.text[-NGRAM:])] = len(self.text)
        self.text.append(token)

    def find(self, most: int) -> list[int]:
        """Return what followed the latest tokens before; what runs into the end is repeated."""
        start = self.follows.get(tuple(self.text[-NGRAM:]))
        if start is None:
            return []
        period = len(self.text) - start
        return [self.text[start + n % period] for n in range(most)]

    def add(self, token: int) -> None:
        """Receive a new token of the text."""
        if self.unchecked:
            wrong = token != self.unchecked[self.right]
            self.right += not wrong
            if wrong or self.right == len(self.unchecked):
                self._learn(self.right, len(self.unchecked))
        self._append(token)

    def _learn(self, right: int, length: int) -> None:
        # of a proposal that was right to its end, more would have been
        self.mean = _mean(self.mean, right if right < length else 2 * length)
        self.unchecked, self.right = [], 0

    def propose(self, most: int, payoff: Payoff) -> list[int]:
        """Return at most so many next tokens; none where checking them would not pay."""
        if self.unchecked or most < 1:
            return []
        length = payoff.best(self.mean)
        tokens = self.find(min(most, length or FIRST))
        if tokens and not length:
            self.unchecked = tokens
            return []
        self.length = len(tokens)
        return tokens

    def checked(self, accepted: int, payoff: Payoff) -> None:  # noqa: ARG002 - of the protocol
        """Learn how many tokens of the latest proposal were right."""
        self._learn(accepted, self.length)


class DraftModel:
    """A smaller model that proposes its likeliest tokens.

    It is tried on a few proposals; where they do not pay it rests, longer each time.

    Args:
        lm: a model of the same vocabulary.
        impl: as of `suffice.generate.generate`.

    Raises:
        ConfigError: if the model keeps sums, out of which no token can be taken.
    """

    def __init__(self, lm: CausalModel, impl: str = "auto") -> None:
        check_can_reject(lm.specs)
        self.memory = Dynamic()
        self.lm, self.room = lm, max_length(lm)
        self.model, _ = choose_backend(lm, self.memory, impl)
        self.right = 0  # tokens of the proposals of the present trial
        self.checks = 0  # of the same
        self.resting, self.pause = 0, PAUSE

    def begin(self, prompt: Sequence[int]) -> Drafts:
        """Return the proposals for a text that begins with a prompt."""
        return ModelDrafts(self, prompt)


class ModelDrafts:
    """The proposals of a `DraftModel` for one text."""

    def __init__(self, drafter: DraftModel, prompt: Sequence[int]) -> None:
        self.drafter = drafter
        self.state = drafter.lm.state(drafter.memory)
        self.unread = list(prompt)
        self.ahead: list[int] = []  # proposed tokens that the draft has read

    def add(self, token: int) -> None:
        """Receive a new token of the text."""
        if self.ahead and self.ahead[0] == token:
            del self.ahead[0]
            return
        self.state.drop_last(len(self.ahead))
        self.ahead = []
        self.unread.append(token)

    def propose(self, most: int, payoff: Payoff) -> list[int]:  # noqa: ARG002 - judged in checked
        """Return at most so many next tokens; none while the draft rests."""
        drafter = self.drafter
        if drafter.resting:
            drafter.resting -= 1
            return []
        count = min(most, DRAFT_TOKENS)
        if drafter.room is not None:
            count = min(count, drafter.room - self.state.length - len(self.unread))
        if count < 1:
            return []
        line = torch.tensor([self.unread], device=drafter.lm.device)
        logits = drafter.lm.logits(drafter.lm.features(line, state=self.state)[:, -1])
        proposal = [int(logits.argmax())]
        while len(proposal) < count:
            last = torch.tensor(proposal[-1:], device=drafter.lm.device)
            proposal.append(int(drafter.model.step(last, self.state).argmax()))
        self.unread, self.ahead = [], proposal[:-1]
        return proposal

    def checked(self, accepted: int, payoff: Payoff) -> None:
        """Learn how many tokens of the latest proposal were right."""
        drafter = self.drafter
        drafter.right += accepted
        drafter.checks += 1
        if drafter.checks < TRIAL:
            return
        mean, drafter.right, drafter.checks = drafter.right / TRIAL, 0, 0
        if payoff.gain(DRAFT_TOKENS, mean) > MARGIN:
            drafter.pause = PAUSE
        else:
            drafter.resting, drafter.pause = drafter.pause, min(2 * drafter.pause, LONGEST_PAUSE)
