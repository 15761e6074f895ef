"""Chat templates: a conversation as the tokens that a model was taught.

A template is a program in a file of the model. It runs in a separate process, which ends when it
takes too long or too much memory; what people write never becomes a special token.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import Any, cast

from suffice.errors import ConfigError, DataError
from suffice.text import Tokenizer
from suffice.text.documents import read_text
from suffice.text.tokenizer import chat_template
from suffice_serve import sandbox

SECONDS = 2.0  # that a template may take
MAX_TEMPLATE = 1 << 16  # characters
PRIVATE = range(0xE000, 0xF8FF)  # characters that no text has a use for

Message = Mapping[str, str]


class ChatTemplate:
    """Writes conversations as a model was taught them.

    Args:
        source: the template, in Jinja's language.
        tokenizer: tokenizer of the model.

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
        if not source:
            raise ConfigError("the chat template is empty; give one that writes the messages.")
        if len(source) > MAX_TEMPLATE:
            raise ConfigError(
                f"a chat template of {len(source):,} characters; at most {MAX_TEMPLATE:,} work."
            )
        self.tokenizer = tokenizer
        self.special = tokenizer.special
        names = sorted(self.special, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        by_id: dict[int | None, str] = {id_: name for name, id_ in self.special.items()}
        self._around = {
            "bos_token": by_id.get(tokenizer.begin, ""),
            "eos_token": by_id.get(tokenizer.end, ""),
        }
        self._renderer = _Renderer(source)
        self.stop = self._end_of_turn()

    def render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """Return the text of a conversation; with `prompt`, up to where the answer begins.

        Raises:
            ConfigError: if the template refuses it, or takes too much time or memory.
        """
        sizes = {"messages": [dict(each) for each in messages], "add_generation_prompt": prompt}
        return self._renderer.render({**sizes, **self._around, "tools": None})

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation up to where the answer begins."""
        return self._ids(*self._with_marks(messages))

    def _with_marks(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text with a mark inside names that people wrote, and the mark."""
        written = {letter for each in messages for text in each.values() for letter in text}
        mark = next((chr(code) for code in PRIVATE if chr(code) not in written), None)
        if mark is None:
            raise ConfigError("the messages hold every private-use character; leave one out.")

        def marked(name: re.Match[str]) -> str:
            return name[0][0] + mark + name[0][1:]

        marks = [{k: self._names.sub(marked, v) for k, v in each.items()} for each in messages]
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
        ends = [] if self.tokenizer.end is None else [self.tokenizer.end]
        answer = "answer"
        try:
            turns = [("user", "question"), ("assistant", answer), ("user", "question")]
            text = self.render([{"role": role, "content": text} for role, text in turns])
        except _Refused:
            return tuple(ends)
        if name := self._names.search(text, text.find(answer)):
            ends.append(self.special[name[0]])
        return tuple(dict.fromkeys(ends))


class _Refused(ConfigError):
    """The template refuses these messages, and may take others."""


class _Renderer:
    """The process that renders a template; it is restarted after it had to be ended."""

    def __init__(self, source: str) -> None:
        self.source, self._lock = source, Lock()
        self._begin()

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return what the template writes with these variables."""
        with self._lock:
            if self._process.poll() is not None:
                self._end()
                self._begin()
            answer = self._ask(variables)
        if (reason := answer.get("error")) is None:
            return answer["text"]
        kind = _Refused if answer.get("refused") else ConfigError
        raise kind(f"the chat template {reason}.")

    def _begin(self) -> None:
        command = [sys.executable, "-P", sandbox.__file__]
        pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=devnull)
        self._end = weakref.finalize(self, _end, self._process)
        self._stdin, self._stdout = cast(Any, self._process.stdin), cast(Any, self._process.stdout)
        self._stdout.readline()  # Python has started, which is not the template's time

    def _ask(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        process, answer = self._process, b""
        deadline = Timer(SECONDS, process.kill)
        deadline.start()
        try:
            lines = json.dumps(self.source), json.dumps(variables), ""
            self._stdin.write("\n".join(lines).encode())
            self._stdin.flush()
            answer = self._stdout.readline()
        except OSError:  # the process has ended
            pass
        finally:
            deadline.cancel()
        if answer.endswith(b"\n"):
            return json.loads(answer)
        process.kill()
        process.wait()
        return {"error": f"takes more than {SECONDS:g} seconds, or memory that there is not"}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def template_of(
    model: Path, facts: Mapping[str, Any], tokenizer: Tokenizer, file: Path | None = None
) -> ChatTemplate | None:
    """Return the chat template of a model, None if it has none.

    It lies in the file given, in the facts of the model, or next to its tokenizer.

    Raises:
        ConfigError: if it is damaged.
        DataError: if a file cannot be read.
    """
    if file is not None:
        if not os.path.isfile(file):  # a pipe might never end
            raise DataError(f"{file} is not a file; name the file of a chat template.")
        return ChatTemplate(read_text(file), tokenizer)
    source = facts.get("chat_template", chat_template(model) if model.is_dir() else None)
    if source is None:
        return None
    if not isinstance(source, str):
        raise DataError(f"{model} has a chat template that is not text; name one by --template.")
    return ChatTemplate(source, tokenizer)
