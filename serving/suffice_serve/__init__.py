"""Answer many requests with one language model, over HTTP as OpenAI's clients speak it."""

from suffice.serve.engine import Engine, Limits
from suffice.serve.job import Job, Listener, TokenScore, TooMany

__all__ = ["Engine", "Job", "Limits", "Listener", "TokenScore", "TooMany"]
