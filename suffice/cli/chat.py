"""`suffice chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from typer import Option

from suffice.cli.generate import SamplingOptions
from suffice.cli.options import Device, FiguresQuiet, check_at_least, options_from_fields
from suffice.cli.serve import (
    Impl,
    ServedModel,
    Template,
    load_model,
)
from suffice.cli.terminal import write_stdout
from suffice.errors import ConfigError, SufficeError

if TYPE_CHECKING:
    from suffice.generate import Sampling
    from suffice.serve import Engine, Job, Score
    from suffice.serve.chat import ChatTemplate
    from suffice.serve.writing import Piece, Spelling, Writer
    from suffice.text import Tokenizer

ANSWER_TOKENS = 512
COMMANDS = "/reset starts over, /save FILE keeps the conversation, /exit or Ctrl-D ends it"


@options_from_fields
def chat(
    model: ServedModel,
    system: Annotated[str | None, Option(help="System prompt.")] = None,
    plain: Annotated[
        bool, Option("--plain", help="Plain completion, without a chat template.")
    ] = False,
    tokens: Annotated[int, Option(help="Maximum tokens per reply.")] = ANSWER_TOKENS,
    *,
    sampling: SamplingOptions,
    template: Template = None,
    device: Device = "cpu",
    impl: Impl = "auto",
    quiet: FiguresQuiet = False,
) -> None:
    """Talk with a model in the terminal; a line is a message, and lines may come from a pipe.

    A model needs a chat template, in its file or folder or by --template; --plain is raw
    completion, with any model. Ctrl-C ends a reply; /reset, /save FILE and /exit are commands.
    """
    check_at_least(1, tokens=tokens)
    if plain and (system is not None or template is not None):
        raise ConfigError("--plain has no turns, so --system and --template do nothing; leave out.")
    choice = sampling.choose()
    from suffice.serve.chat import template_of
    from suffice.serve.engine import Engine, Limits

    lm, tokenizer, facts = load_model(model, device)
    turns = None if plain else template_of(model, facts, tokenizer, template)
    if turns is None and not plain:
        raise ConfigError(
            f"{model} has no chat template; use --plain for raw completion, or pass --template "
            "FILE."
        )
    engine = Engine(lm, Limits(rows=1, queue=0, cache=1 << 40), impl=impl)
    dialogue: Dialogue | Continuation
    dialogue = Continuation(tokenizer) if turns is None else Dialogue(turns, system)
    talk = Talk(engine, tokenizer, dialogue, tokens=tokens, sampling=choice, quiet=quiet)
    try:
        talk.run()
    finally:
        engine.close(0.0)


@dataclass
class Dialogue:
    """Messages in turns."""

    template: ChatTemplate
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def stop(self) -> tuple[int, ...]:
        """The ids that end an answer."""
        return self.template.stop

    def ask(self, line: str) -> None:
        """Add what the user wrote."""
        self.messages.append({"role": "user", "content": line})

    def answer(self, text: str) -> None:
        """Add what the model wrote."""
        self.messages.append({"role": "assistant", "content": text})

    def ids(self) -> list[int]:
        """Return what the model reads."""
        return self.template.encode(self.to_json())

    def shorten(self) -> bool:
        """Forget the oldest turn; return whether there was one before the latest question."""
        if len(self.messages) < 3:
            return False
        del self.messages[:2]
        return True

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = []

    def to_json(self) -> list[dict[str, str]]:
        """Return all messages, as OpenAI's clients send them."""
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*told, *self.messages]


@dataclass
class Continuation:
    """One text that the user and the model write in turn."""

    tokenizer: Tokenizer
    text: str = ""

    @property
    def stop(self) -> tuple[int, ...]:
        """The id that ends a text."""
        return () if self.tokenizer.end is None else (self.tokenizer.end,)

    def ask(self, line: str) -> None:
        """Add the user's text on a new line."""
        self.text += f"\n{line}" if self.text else line

    def answer(self, text: str) -> None:
        """Add what the model wrote."""
        self.text += text

    def ids(self) -> list[int]:
        """Return what the model reads."""
        from suffice.text.tokenizer import prompt_ids

        return prompt_ids(self.tokenizer, self.text)

    def shorten(self) -> bool:
        """Forget the first half; return whether there was one."""
        self.text = self.text[(len(self.text) + 1) // 2 :]
        return bool(self.text)

    def reset(self) -> None:
        """Begin a new text."""
        self.text = ""

    def to_json(self) -> str:
        """Return the text."""
        return self.text


@dataclass
class Talk:
    """Reads lines, writes answers."""

    engine: Engine
    tokenizer: Tokenizer
    dialogue: Dialogue | Continuation
    tokens: int
    sampling: Sampling
    quiet: bool
    answers: int = 0
    spelling: Spelling = field(init=False)

    def __post_init__(self) -> None:
        from suffice.serve.writing import Spelling

        self.spelling = Spelling(self.tokenizer)

    def run(self) -> None:
        """Answer every line."""
        if sys.stdin.isatty():
            self._say(f"({COMMANDS})")
        for line in self._lines():
            if line == "/exit":
                return
            if not self._command(line):
                self.dialogue.ask(line)
                self._answer()

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                if sys.stdin.isatty():
                    line = input("> ")
                elif not (line := sys.stdin.readline()):
                    return
            except EOFError:
                write_stdout("\n")
                return
            if line.strip():
                yield line.rstrip("\n")

    def _command(self, line: str) -> bool:
        """Do what a line asks for; return whether it was a command."""
        word, _, rest = line.partition(" ")
        if word == "/reset" and not rest:
            self.dialogue.reset()
        elif word == "/save":
            self._save(rest.strip())
        elif word in ("/help", "/reset"):
            self._say(f"({COMMANDS})")
        else:
            return False
        return True

    def _save(self, name: str) -> None:
        from suffice.utils.files import write_atomic

        path = Path(name)
        if not name or path.exists():
            self._say(f"{name} exists; name another file." if name else "name a file: /save FILE")
            return
        content = self.dialogue.to_json()
        if not isinstance(content, str):
            content = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        try:
            write_atomic(path, content)
        except OSError as error:
            self._say(f"cannot write {name} ({error.strerror}); name another file.")

    def _answer(self) -> None:
        from suffice.serve.writing import Writer

        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        ids, most = self._fitting()
        writer = Writer(self.spelling, ids, deliver=pieces.put)
        watch = Watch(writer)
        ticket = self.engine.submit(self._job(ids, most), watch)
        text = ""
        try:
            while True:
                piece = pieces.get()
                text += piece.text
                write_stdout(piece.text)
                if piece.error is not None:
                    raise SufficeError(piece.error)
                if piece.last:
                    break
        except KeyboardInterrupt:
            ticket.cancel()
            if not sys.stdin.isatty():  # nobody is there for the next answer
                raise
        write_stdout("\n")
        self.dialogue.answer(text)
        self.answers += 1
        if not self.quiet and len(watch.ticks) > 1:
            self._say(f"[{watch.figures(len(ids), ticket.cached)}]")

    def _job(self, ids: list[int], most: int) -> Job:
        from suffice.serve.job import Job

        return Job(
            prompt=tuple(ids),
            max_tokens=most,
            sampling=self.sampling,
            row=self.answers,  # other random numbers for each answer
            stop=self.dialogue.stop,
        )

    def _fitting(self) -> tuple[list[int], int]:
        """Return what the model reads and how much it may write; old turns are forgotten."""
        room = self.engine.room
        forgot = False
        while True:
            ids = self.dialogue.ids()
            left = self.tokens if room is None else min(self.tokens, room + 1 - len(ids))
            if left >= min(self.tokens, 1 if room is None else max(room // 4, 1)):
                break
            if not self.dialogue.shorten():
                raise ConfigError(
                    f"a message of {len(ids)} tokens leaves no room in a model of {room} "
                    "positions; write a shorter one."
                )
            forgot = True
        if forgot:
            self._say(f"(the model has {room} positions: the beginning is forgotten)")
        return ids, left

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Watch:
    """A listener that takes note of when tokens come, and passes them on."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.ticks = writer, [perf_counter()]
        self.prompt, self.finish, self.fail = writer.prompt, writer.finish, writer.fail

    def token(self, score: Score) -> bool:
        """Take note and pass on."""
        self.ticks.append(perf_counter())
        return self.writer.token(score)

    def figures(self, prompt: int, cached: int) -> str:
        """Return the numbers of tokens and both rates."""
        from suffice.generate.rates import rates_of

        again = f" ({cached} kept)" if cached else ""
        return f"{len(self.ticks) - 1} tokens; {rates_of(prompt - cached, self.ticks)}{again}"
