"""Chat templates: a conversation as the tokens that a model was taught.

A template is a program in a file of the model. It runs in Jinja's sandbox with a limit of time and
of what it writes; what people write into messages never becomes a special token.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from suffice.errors import ConfigError, DataError
from suffice.text import Tokenizer
from suffice.text.documents import read_text

SECONDS = 2.0  # that a template may take
LONGEST = 1 << 16  # characters of a template
LARGEST = 1 << 20  # of a number or a text that it multiplies
PRIVATE = range(0xE000, 0xF8FF)  # characters that no text has a use for

Message = Mapping[str, str]


class ChatTemplate:
    """Writes conversations as a model was taught them.

    Args:
        source: the template, in Jinja's language.
        tokenizer: of the model.

    Raises:
        ConfigError: if the template is not one.

    Example:
        >>> from suffice.text import Characters
        >>> source = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:"
        >>> template = ChatTemplate(source, Characters.of("abcdefghijklmnopqrstuvwxyz: !"))
        >>> template.render([{"role": "user", "content": "hello!"}])
        'u:hello! a:'
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        from jinja2 import TemplateError

        if len(source) > LONGEST:
            raise ConfigError(f"a chat template of {len(source):,} characters; {LONGEST:,} go.")
        self.tokenizer = tokenizer
        self.special = tokenizer.special
        names = sorted(self.special, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        by_id = {id_: name for name, id_ in self.special.items()}
        self._around = {
            "bos_token": by_id.get(tokenizer.begin, ""),
            "eos_token": by_id.get(tokenizer.end, ""),
        }
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise ConfigError(f"the chat template is damaged ({error!s:.200}).") from error
        self.stop = self._end_of_turn()

    def render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """Return the text of a conversation; with `prompt`, up to where the answer begins.

        Raises:
            ConfigError: if the template refuses it, or takes too long.
        """
        from jinja2 import TemplateError

        sizes = {"messages": [dict(each) for each in messages], "add_generation_prompt": prompt}
        most = LARGEST + sum(len(text) for each in messages for text in each.values())
        pieces, length = [], 0
        try:
            with _Deadline(SECONDS):
                for piece in self._template.generate(**sizes, **self._around, tools=None):
                    pieces.append(piece)
                    length += len(piece)
                    if length > most:
                        raise ConfigError("the chat template writes without an end.")
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ConfigError(f"the chat template refuses these messages: {error!s:.300}") from None
        except (AttributeError, RecursionError, MemoryError) as error:
            raise ConfigError(f"the chat template fails with {type(error).__name__}.") from None
        return "".join(pieces)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation up to where the answer begins."""
        return self._ids(*self._with_marks(messages))

    def _with_marks(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text with a mark inside names that people wrote, and the mark."""
        written = "".join(each["content"] for each in messages)
        mark = next(chr(code) for code in PRIVATE if chr(code) not in written)

        def marked(name: re.Match[str]) -> str:
            return name[0][0] + mark + name[0][1:]

        marks = [{**each, "content": self._names.sub(marked, each["content"])} for each in messages]
        return self.render(marks), mark

    def _ids(self, text: str, mark: str) -> list[int]:
        ids: list[int] = []
        start = 0
        for name in (*self._names.finditer(text), None):
            end = len(text) if name is None else name.start()
            if between := text[start:end].replace(mark, ""):
                ids += self.tokenizer.encode(between)
            if name is not None:
                ids.append(self.special[name[0]])
                start = name.end()
        return ids

    def _end_of_turn(self) -> tuple[int, ...]:
        """Return the ids that end an answer: the text's, and what the template puts behind one."""
        ends = [] if self.tokenizer.end is None else [self.tokenizer.end]
        answer = "answer"
        try:
            turns = [("user", "question"), ("assistant", answer), ("user", "question")]
            text = self.render([{"role": role, "content": text} for role, text in turns])
        except ConfigError:
            return tuple(ends)
        if name := self._names.search(text, text.find(answer)):
            ends.append(self.special[name[0]])
        return tuple(dict.fromkeys(ends))


class _Deadline:
    """Raises ConfigError in this thread's Python code when a time is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, value: object) -> Any:  # noqa: ARG002
        if time.monotonic() > self.end:
            raise ConfigError(f"the chat template takes more than {SECONDS:g} seconds.")
        return self._trace


def _environment() -> Any:
    from jinja2 import TemplateRuntimeError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

    class Sandbox(ImmutableSandboxedEnvironment):
        """Jinja's sandbox, in which products and powers stay small."""

        intercepted_binops = frozenset(["*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Return left operator right."""
            sizes = [len(x) if isinstance(x, str | list | tuple) else x for x in (left, right)]
            if operator == "%" and isinstance(left, str):
                raise SecurityError("texts are not formatted by %")
            product = sizes[0] ** min(sizes[1], 64) if operator == "**" else sizes[0] * sizes[1]
            if operator != "%" and abs(product) > LARGEST:
                raise SecurityError(f"{operator} gives more than {LARGEST:,}")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateRuntimeError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    for name in ("center", "indent", "format", "batch", "slice"):  # they fill with what is asked
        environment.filters.pop(name, None)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])
    return environment


def template_of(
    model: Path, facts: Mapping[str, Any], tokenizer: Tokenizer, file: Path | None = None
) -> ChatTemplate | None:
    """Return the chat template of a model, None if it has none.

    It lies in the file given, in the facts of a .gguf, in chat_template.jinja or in
    tokenizer_config.json.

    Raises:
        ConfigError: if it is damaged.
        DataError: if a file cannot be read.
    """
    if file is not None:
        return ChatTemplate(read_text(file), tokenizer)
    source = facts.get("chat_template")
    if source is None and (model / "chat_template.jinja").is_file():
        source = read_text(model / "chat_template.jinja")
    if source is None and (model / "tokenizer_config.json").is_file():
        source = _named(model / "tokenizer_config.json")
    if source is None:
        return None
    if not isinstance(source, str):
        raise DataError(f"{model} gives a chat template that is no text; name one by --template.")
    return ChatTemplate(source, tokenizer)


def _named(path: Path) -> Any:
    """Return the entry chat_template of a file; of several the one named default."""
    from suffice.files import read_json

    entries = read_json(path)
    source = entries.get("chat_template") if isinstance(entries, dict) else None
    if isinstance(source, list):
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        return named.get("default")
    return source
