"""What `advise` is asked: a task and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suffice.errors import ConfigError, check_known
from suffice.utils.grammar import parse_bytes, parse_seconds, parse_share
from suffice.utils.records import is_whole

TASKS = ("lm", "classify", "image", "translate")
MINUTES = 3.0
ANY_DEVICE = "here"
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "length": (lambda tokens: is_whole(tokens, least=1), "a whole number of at least 1"),
    "memory": (lambda size: is_whole(size, least=1), "a whole number of at least 1"),
    "latency": (lambda seconds: seconds > 0.0, "a number above 0"),
    "minutes": (lambda minutes: 0.0 < minutes < 1e6, "a number above 0, of at most a million"),
    "quality": (lambda share: 0.0 <= share < 1.0, "a fraction from 0 to below 1"),
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task and its limits; `ConfigError` for those that are not legal.

    Example:
        >>> Request(task="lm", length=512, memory=2 * 10**9, latency=0.03).unit
        'token'
    """

    task: str  # lm (writes text), classify (reads text), image or translate
    length: int | None = None  # tokens or patches of an input; None: the model's own
    memory: int | None = None  # bytes for weights, state and activations; None: this machine's
    latency: float | None = None  # seconds for each token, or each input where nothing is written
    device: str = ANY_DEVICE  # "here" (a GPU if there is one), "cpu" or "cuda"
    quality: float | None = None  # loss of test accuracy that `results` may show; None: 0.01
    model: str | None = None  # one of `models_of(task)`; None: the task's usual one
    checkpoint: str | None = None  # folder of a language model whose sizes are measured instead
    minutes: float = MINUTES  # for timing
    mechanisms: tuple[str, ...] = ()  # compositions to choose from, see `Composition`; (): all
    results: tuple[str, ...] = ()  # folders of `suffice compare`, whose verdicts decide
    recall: bool = False  # whether a language model has to look things up in its input

    def __post_init__(self) -> None:
        check_known("task", self.task, TASKS)
        wrong = [
            f"{name}={value!r}; give {legal}."
            for name, (is_legal, legal) in LIMITS.items()
            if (value := getattr(self, name)) is not None and not is_legal(value)
        ]
        if self.model is not None and self.checkpoint is not None:
            wrong.append("model and checkpoint name two models; give one of them.")
        if self.recall and self.task != "lm":
            wrong.append(f"recall is asked of language models, not of task={self.task!r}.")
        if self.checkpoint is not None and self.task != "lm":
            wrong.append(f"a checkpoint is of a language model, not for task={self.task!r}.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    @classmethod
    def parse(cls, task: str, **words: Any) -> Request:
        """Return a request from fields whose quantities may be text; lists become tuples.

        Example:
            >>> Request.parse("lm", memory="2GB", latency="30ms/token", quality="1%").memory
            2000000000
        """
        parsers = {
            "memory": parse_bytes,
            "latency": lambda text: parse_seconds(text, _unit(task)),
            "quality": parse_share,
        }
        for name, value in words.items():
            if isinstance(value, str) and name in parsers:
                words[name] = parsers[name](value)
            elif isinstance(value, list):
                words[name] = tuple(value)
        return cls(task=task, **words)

    @property
    def unit(self) -> str:
        """Unit of the latencies: "token" for generation, otherwise "input"."""
        return _unit(self.task)


def _unit(task: str) -> str:
    return "token" if task in ("lm", "translate") else "input"


def each(unit: str) -> str:
    """Return "a token" or "an input"."""
    return f"{'an' if unit[0] in 'aeiou' else 'a'} {unit}"
