"""A program that renders one chat template in Jinja's sandbox, with a limit of its memory.

A single call such as `"a".ljust(10**10)` takes any memory and cannot be interrupted, so whoever
starts the program ends it when its time is over. It imports nothing of the package. Its input is
pairs of lines, a template and its variables, each answered by a line. All are JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

MEMORY = 1 << 29  # bytes of address space, of which Python and Jinja take a tenth
MAX_ADDED = 1 << 20  # characters of an answer beyond those of the messages


def environment() -> Any:
    """Return what templates of published models run in."""
    from jinja2 import TemplateRuntimeError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateRuntimeError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    blocks = {"trim_blocks": True, "lstrip_blocks": True}
    made = ImmutableSandboxedEnvironment(**blocks, extensions=[loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])
    return made


def answer(
    compile_: Callable[[str], Any], source: str, variables: dict[str, Any]
) -> dict[str, Any]:
    """Return the text of a conversation, or the reason why there is none.

    "refused" says that the template may write other messages.
    """
    from jinja2 import TemplateError

    most = MAX_ADDED + sum(len(text) for each in variables["messages"] for text in each.values())
    pieces, length, compiled = [], 0, False
    try:
        template = compile_(source)
        compiled = True
        for piece in template.generate(**variables):
            pieces.append(piece)
            length += len(piece)
            if length > most:
                return {"error": "writes without an end"}
        return {"text": "".join(pieces)}
    except MemoryError:
        return {"error": f"takes more than {MEMORY >> 20} MiB of memory"}
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        reason = f"{error!s:.300}"
    except (AttributeError, RecursionError) as error:
        reason = type(error).__name__
    if compiled:
        return {"error": f"refuses these messages: {reason}", "refused": True}
    return {"error": f"is damaged ({reason})"}


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for who started this
    compile_, lines = lru_cache(1)(environment().from_string), sys.stdin.buffer
    if sys.platform == "linux":  # others do not enforce it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(flush=True)  # noqa: T201 - what follows is the template's time
    while source := lines.readline():
        content = answer(compile_, json.loads(source), json.loads(lines.readline()))
        print(json.dumps(content), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
