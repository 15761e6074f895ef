"""Incremental detokenization: pieces of text for clients, with scores and stop texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from suffice.text import Tokenizer
from suffice.text.tokenizer import MAX_CHARACTER_BYTES, REPLACEMENT, TextStream
from suffice_serve.job import TokenScore


class Entry(NamedTuple):
    """A token with its score, as clients read it.

    Args:
        text: text of the token; "token_id:N" where it is not a whole character.
        logprob: log-probability; None for the first token of a text.
        top: the likeliest tokens in its place, by text.
        offset: number of characters before it.
    """

    text: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


@dataclass
class Piece:
    """The text written since the piece before, its scores, and why it ended, if it did."""

    text: str = ""
    entries: list[Entry] = field(default_factory=list)
    tokens: int = 0
    reason: str | None = None
    error: str | None = None

    def extend(self, later: Piece) -> None:
        """Add the piece that follows."""
        self.text += later.text
        self.entries += later.entries
        self.tokens += later.tokens
        self.reason, self.error = later.reason, later.error

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.reason is not None or self.error is not None


class Spelling:
    """The text of single tokens, as they are spelled inside a text.

    Example:
        >>> from suffice.text import Characters
        >>> Spelling(Characters("ab "))[2]
        ' '
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        # the first token of a text may lose the space before it
        self._before = next((n for n in range(tokenizer.vocabulary_size) if self._plain(n)), None)

    def _plain(self, id_: int) -> bool:
        text = self.tokenizer.decode([id_])
        return text.isascii() and text.strip().isalpha() and id_ not in self._special()

    def _special(self) -> set[int]:
        return {*self.tokenizer.special.values()}

    def __getitem__(self, id_: int) -> str:
        """Return the text of a token; it is unique if the token is not a whole character."""
        text = self._texts.get(id_)
        if text is None:
            text = self._texts[id_] = self._spell(id_)
        return text

    def __contains__(self, id_: int) -> bool:
        """Return whether an id is a token; others fill the rows of a model's matrices."""
        return id_ < self.tokenizer.vocabulary_size

    def _spell(self, id_: int) -> str:
        before = [] if self._before is None else [self._before]
        text = ""
        if id_ in self:
            text = self.tokenizer.decode([*before, id_])[len(self.tokenizer.decode(before)) :]
        return text if text and REPLACEMENT not in text else f"token_id:{id_}"

    def entry(self, score: TokenScore, offset: int) -> Entry:
        """Return a score as clients read it."""
        top: dict[str, float] = {}
        for id_, logprob in score.top:
            top.setdefault(self[id_], logprob)
        return Entry(self[score.token], score.logprob, top, offset)


class Writer:
    """A listener that turns tokens into text, and ends it at a stop text.

    Text that may become a stop text is held back until it cannot.

    Args:
        spelling: texts of the tokens.
        prompt: ids before the text.
        unspelled: number of first ids of the prompt that its text does not spell.
        stop: texts that end it and are not part of it.
        offset: number of characters before the text, for the entries.
        scored: whether entries are wanted.
        deliver: function that receives the pieces, in the engine's thread.
    """

    def __init__(
        self,
        spelling: Spelling,
        prompt: Sequence[int],
        *,
        unspelled: int = 0,
        stop: Sequence[str] = (),
        offset: int = 0,
        scored: bool = False,
        deliver: Callable[[Piece], object],
    ) -> None:
        self.spelling, self.stop, self.deliver = spelling, tuple(stop), deliver
        self.scored, self.offset = scored, offset
        self.held, self.sent = "", 0  # text, and characters before it
        self.entries: list[Entry] = []  # not sent
        self.tokens = 0  # not sent
        self.stopped = False
        self.echoed = 0  # characters of the prompt whose scores were received
        self.first = prompt[:1]
        self._echo = TextStream(spelling.tokenizer, list(prompt[:unspelled]), self._count)
        self._stream = TextStream(
            spelling.tokenizer, list(prompt[-MAX_CHARACTER_BYTES:]), self._hold
        )

    def _hold(self, text: str) -> None:
        self.held += text

    def _count(self, text: str) -> None:
        self.echoed += len(text)

    def prompt(self, scores: Sequence[TokenScore]) -> None:
        """Receive the scores of the prompt's next tokens; its first one has none."""
        piece = Piece()
        for token in self.first:
            piece.entries.append(Entry(self.spelling[token], None, None, 0))
            if not self._echo.pending:
                self._echo.add(token)
        self.first = ()
        for score in scores:
            # a tokenizer that normalises may spell more than was sent
            piece.entries.append(self.spelling.entry(score, min(self.echoed, self.offset)))
            self._echo.add(score.token)
        self.deliver(piece)

    def token(self, score: TokenScore) -> bool:
        """Receive a new token; return whether the text goes on."""
        self.tokens += 1
        if self.scored:
            self.entries.append(self.spelling.entry(score, self.sent + len(self.held)))
        if score.token in self.spelling:
            self._stream.add(score.token)
        if self._found():
            return False
        self._send(len(self.held) - self._beginning_of_stop())
        return True

    def _found(self) -> bool:
        """Return whether a stop text is there; leave what comes before it."""
        ends = [at for at in map(self.held.find, self.stop) if at >= 0]
        if ends:
            self.held, self.stopped = self.held[: min(ends)], True
        return self.stopped

    def _beginning_of_stop(self) -> int:
        longest = max(map(len, self.stop), default=0)
        for count in range(min(longest - 1, len(self.held)), 0, -1):
            if any(text.startswith(self.held[-count:]) for text in self.stop):
                return count
        return 0

    def _send(self, count: int, reason: str | None = None) -> None:
        text, self.held = self.held[:count], self.held[count:]
        self.sent += count
        whole = reason is not None and not self.stopped
        ready = [entry for entry in self.entries if whole or entry.offset < self.sent]
        self.entries = self.entries[len(ready) :]
        if text or ready or reason:
            shifted = [each._replace(offset=each.offset + self.offset) for each in ready]
            self.deliver(Piece(text, shifted, self.tokens, reason))
            self.tokens = 0

    def finish(self, reason: str) -> None:
        """Send what was held back."""
        if not self.stopped:
            self._stream.close()
            reason = "stop" if self._found() else reason
        self._send(len(self.held), reason)

    def fail(self, reason: str) -> None:
        """Report a failed generation."""
        self.deliver(Piece(error=reason))
