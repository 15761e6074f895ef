"""A listener that keeps what it is told."""

from __future__ import annotations

import threading

PATIENCE = 60.0  # seconds


class Kept:
    """Keeps tokens and scores; can end a text after some tokens, or fail at one."""

    def __init__(self, most=None, fails_at=None):
        self.tokens, self.scores, self.prompt_scores = [], [], []
        self.most, self.fails_at = most, fails_at
        self.reason = self.error = None
        self.ended = threading.Event()

    def prompt(self, scores):
        self.prompt_scores += scores

    def token(self, score):
        self.tokens.append(score.token)
        self.scores.append(score)
        if len(self.tokens) == self.fails_at:
            raise ValueError("a listener failed")
        return len(self.tokens) != self.most

    def finish(self, reason):
        self.reason = reason
        self.ended.set()

    def fail(self, reason):
        self.error = reason
        self.ended.set()

    def wait(self):
        assert self.ended.wait(PATIENCE)
        return self
