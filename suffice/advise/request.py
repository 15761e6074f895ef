"""What is asked of the adviser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.units import read_bytes, read_seconds, read_share

TASKS = ("lm", "classify", "image", "translate")
WRITES = ("lm", "translate")
MINUTES = 3.0
HERE = "here"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task, what it may need, and how long may be measured.

    Args:
        task: lm (writes text), classify (reads text), image or translate.
        length: tokens or patches of an input; None = the model's own.
        memory: bytes for weights, state and activations; None = this machine's.
        latency: seconds for each token, or for each input where nothing is written; None = any.
        device: "here" (a GPU where there is one), "cpu" or "cuda".
        quality: test accuracy that may be lost, a fraction: what is shown to lose more is not
            recommended. None = evidence is told at a hundredth and decides nothing.
        model: whose sizes are measured, see `MODELS`; None = the task's usual one.
        checkpoint: folder of a language model whose sizes are measured instead.
        minutes: of measuring.
        mechanisms: compositions to choose from, see `Composition`; none = all there are.
        results: folders of `suffice compare` to look for evidence in, too.

    Raises:
        ConfigError: for an unknown task, or a number that is not legal.

    Example:
        >>> Request(task="lm", length=512, memory=2 * 10**9, latency=0.03).unit
        'token'
    """

    task: str
    length: int | None = None
    memory: int | None = None
    latency: float | None = None
    device: str = HERE
    quality: float | None = None
    model: str | None = None
    checkpoint: str | None = None
    minutes: float = MINUTES
    mechanisms: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        wrong = [
            f"{name}={value!r}; give a whole number of at least 1."
            for name in ("length", "memory")
            if (value := getattr(self, name)) is not None
            and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
        ]
        wrong += [
            f"{name}={value!r}; give a number above 0."
            for name in ("latency", "minutes")
            if (value := getattr(self, name)) is not None and not value > 0.0
        ]
        if self.quality is not None and not 0.0 <= self.quality < 1.0:
            wrong.append(f"quality={self.quality!r}; give a fraction from 0 to below 1.")
        if self.model is not None and self.checkpoint is not None:
            wrong.append("model and checkpoint name two models; give one of them.")
        if self.checkpoint is not None and self.task != "lm":
            wrong.append(f"a checkpoint is of a language model, not for task={self.task!r}.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    @classmethod
    def of_words(cls, task: str, **words: Any) -> Request:
        """Read a request whose memory, latency and quality are words.

        Args:
            task: see `Request`.
            **words: fields; "2GB", "30ms/token" and "1%" are read, lists become tuples.

        Raises:
            ConfigError: for words that say no such thing, or values that are not legal.

        Example:
            >>> Request.of_words("lm", memory="2GB", latency="30ms/token", quality="1%").memory
            2000000000
        """
        found = dict(words)
        readers = {
            "memory": read_bytes,
            "latency": lambda told: read_seconds(told, unit_of(task)),
            "quality": read_share,
        }
        for name, read in readers.items():
            if isinstance(found.get(name), str):
                found[name] = read(found[name])
        for name in ("mechanisms", "results"):
            if name in found:
                found[name] = tuple(found[name])
        return cls(task=task, **found)

    @property
    def writes(self) -> bool:
        """Whether tokens are written one after the other."""
        return self.task in WRITES

    @property
    def unit(self) -> str:
        """What a time is for each of."""
        return unit_of(self.task)


def unit_of(task: str) -> str:
    """Return what a time of a task is for each of: "token" where it writes, else "input"."""
    return "token" if task in WRITES else "input"


def each(unit: str) -> str:
    """Return what a time is of, in words.

    Example:
        >>> each("token"), each("input")
        ('a token', 'an input')
    """
    return f"{'an' if unit[0] in 'aeiou' else 'a'} {unit}"
