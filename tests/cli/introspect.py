"""The verbs' arguments and options, read from their functions, so that none can be forgotten."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from typer.models import ArgumentInfo, OptionInfo

from suffice.cli import VERBS


@dataclass(frozen=True)
class Parameter:
    """An argument (its flag is None) or an option of a verb."""

    verb: str
    name: str
    flag: str | None
    kind: type

    def __str__(self) -> str:
        return f"{self.verb} {self.flag or self.name.upper()}"


def parameters() -> list[Parameter]:
    """Return every argument and option of every verb that takes a value."""
    found = []
    for verb in VERBS:
        module = import_module(f"suffice.cli.{verb}")
        function = getattr(module, "list_mechanisms" if verb == "list" else verb)
        declared = inspect.signature(function, eval_str=True).parameters
        for name, hint in ((each.name, each.annotation) for each in declared.values()):
            if typing.get_origin(hint) is not typing.Annotated:
                continue
            plain, info = typing.get_args(hint)
            kind = _plain(plain)
            if kind is bool:
                continue
            flag = None
            if not isinstance(info, ArgumentInfo):
                assert isinstance(info, OptionInfo)
                given = [word for word in info.param_decls or () if word.startswith("--")]
                flag = given[0].partition("/")[0] if given else f"--{name.replace('_', '-')}"
            found.append(Parameter(verb, name, flag, kind))
    return found


def _plain(hint: object) -> type:
    """Return str of `list[str] | None`, and so on."""
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    return _plain(inner[0]) if inner else typing.cast("type", hint)


def outputs() -> list[Parameter]:
    """Return the options that name what is written."""
    names = {"out", "export", "png", "svg", "flow"}
    return [p for p in parameters() if p.kind is Path and p.flag and p.name in names]
