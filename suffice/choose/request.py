"""What `advise` is asked: a task and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from suffice.errors import ConfigError, check_known
from suffice.utils.grammar import parse_bytes, parse_seconds, parse_share, split_list
from suffice.utils.records import is_whole

TASKS = ("lm", "classify", "image", "translate")
ANY_DEVICE = "here"
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "length": (lambda tokens: is_whole(tokens, least=1), "a whole number of at least 1"),
    "memory": (lambda size: is_whole(size, least=1), "a whole number of at least 1"),
    "latency": (lambda seconds: seconds > 0.0, "a number above 0"),
    "minutes": (lambda minutes: 0.0 < minutes < 1e6, "a number above 0, of at most a million"),
    "quality": (lambda share: 0.0 <= share < 1.0, "a fraction from 0 to below 1"),
}
TEXT: dict[str, Any] = {"parser": str, "metavar": "<str>"}  # parsed by the record itself


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task and its limits, whose quantities may be text; `ConfigError` for illegal ones.

    Example:
        >>> request = Request(task="lm", length=512, memory="2GB", latency="30ms/token")
        >>> request.memory, request.latency, request.unit
        (2000000000, 0.03, 'token')
    """

    task: Annotated[
        str,
        Option(
            help="lm (writes text), classify (reads text), image or translate.",
            autocompletion=lambda incomplete: [t for t in TASKS if t.startswith(incomplete)],
        ),
    ] = ""
    length: Annotated[
        int | None, Option(help="Tokens or patches of an input; the model's by default.")
    ] = None
    memory: Annotated[
        int | None,
        Option(
            help="Memory for weights, state and activations, such as 2GB; this machine's by "
            "default.",
            **TEXT,
        ),
    ] = None  # bytes
    latency: Annotated[
        float | None,
        Option(help="Maximum time for each generated token or input, such as 30ms/token.", **TEXT),
    ] = None  # seconds
    device: Annotated[str, Option(help="here (a GPU if there is one), cpu or cuda.")] = ANY_DEVICE
    quality: Annotated[
        float | None,
        Option(
            help="Test accuracy that may be lost, 1% by default, at which --results are judged.",
            **TEXT,
        ),
    ] = None  # a fraction
    model: Annotated[
        str | None,
        Option(
            help="Model whose sizes are measured: 15m, 110m or a configuration for lm, a recipe of "
            "`suffice compare` for the others."
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(metavar="<path>", help="Folder of a language model whose sizes are measured."),
    ] = None
    minutes: Annotated[float, Option(help="Minutes of timing.")] = 3.0
    mechanisms: Annotated[
        Sequence[str] | None,
        Option(
            parser=split_list,
            metavar="<str>",
            help="Only these, separated by commas: mechanisms with changes, such as "
            "efficient+window:512+memory:8; kv:N, window:W, sinks:N, full:N, softmax:N, memory:8 "
            "or 4, values:4, weights:8 or 4.",
        ),
    ] = None
    results: Annotated[
        list[str] | None,
        Option(
            metavar="<path>",
            help="Folder of a finished `suffice compare`, which decides; repeatable.",
        ),
    ] = None
    recall: Annotated[
        bool,
        Option(
            "--recall",
            help="The language model has to look things up in its input: only what solves tasks "
            "of recall is recommended.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if not self.task:
            raise ConfigError(f"give a task: one of {', '.join(TASKS)}.")
        check_known("task", self.task, TASKS)
        parsers = {
            "memory": parse_bytes,
            "latency": lambda text: parse_seconds(text, self.unit),
            "quality": parse_share,
        }
        for name, parse in parsers.items():
            if isinstance(text := getattr(self, name), str):
                object.__setattr__(self, name, parse(text))
        for name in ("mechanisms", "results"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
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

    @property
    def unit(self) -> str:
        """Unit of the latencies: "token" for generation, otherwise "input"."""
        return "token" if self.task in ("lm", "translate") else "input"
