"""The verbs' arguments and options, read from their functions, so that none can be forgotten."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from typer.models import ArgumentInfo, OptionInfo

from suffice.cli import SIBLINGS, VERBS, module_of


@dataclass(frozen=True)
class Parameter:
    """An argument (its flag is None) or an option of a verb."""

    verb: str
    name: str
    flag: str | None
    kind: type

    def __str__(self) -> str:
        return f"{self.verb} {self.flag or self.name.upper()}"


CORE = [verb for verb in VERBS if verb not in SIBLINGS]


def parameters(verbs: Iterable[str] = CORE) -> list[Parameter]:
    """Return every argument and option of these verbs that takes a value."""
    found = []
    for verb in verbs:
        module = module_of(verb)
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


OUTPUTS = {"out", "export", "svg", "flow"}


def names_output(parameter: Parameter) -> bool:
    """Return whether an option names what is written."""
    return parameter.kind is Path and parameter.flag is not None and parameter.name in OUTPUTS
