"""Exception classes, and nearest legal names.

A message names the illegal value, what is legal and what to do. The command line prints it as one
sentence and exits with code 2.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import Any

MAX_MESSAGE_LENGTH = 2000  # characters of a message


class SufficeError(Exception):
    """Base of all errors raised on purpose by this library; what was given is not repeated whole.

    Example:
        >>> len(str(ConfigError("x" * 100_000)))
        2005
    """

    def __str__(self) -> str:
        message = super().__str__()
        if len(message) <= MAX_MESSAGE_LENGTH:
            return message
        return f"{message[: MAX_MESSAGE_LENGTH // 2]} ... {message[-MAX_MESSAGE_LENGTH // 2 :]}"


class ConfigError(SufficeError, ValueError):
    """A value, a name or a combination of values is not legal."""


class ShapeError(SufficeError, ValueError):
    """A tensor's shape does not fit the call."""


class MaskError(SufficeError, TypeError):
    """A mask is not boolean."""


class StateError(SufficeError, RuntimeError):
    """An object was used in a state that does not allow it."""


class UnsupportedError(SufficeError, NotImplementedError):
    """An implementation that was chosen by name cannot do this."""


class DataError(SufficeError, ValueError):
    """A data set is absent, truncated or altered."""


class CheckpointError(SufficeError, ValueError):
    """A file of weights cannot be read or written."""


def did_you_mean(name: object, legal: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest legal one, if one is near."""
    names = list(legal)
    initials = {"".join(part[:1] for part in re.split("[-_]", n)): n for n in names}
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    near = [initials[str(name)]] if str(name) in initials and str(name)[1:] else near
    return f"; did you mean {near[0]!r}?" if near else "."


def unknown(what: str, name: object, legal: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not in a table, with the nearest legal one."""
    names = sorted(legal)
    hint = did_you_mean(name, names)
    return ConfigError(f"unknown {what} {name!r}{hint} Legal: {', '.join(names) or 'none'}.")


def check_known(what: str, name: object, legal: Collection[str]) -> None:
    """Refuse a name that is not in a table; see `unknown`."""
    if name not in legal:
        raise unknown(what, name, legal)


@contextlib.contextmanager
def installed_for(purpose: str, extra: str, otherwise: str = "") -> Iterator[None]:
    """Raise ConfigError for a library that is imported in the block and absent, or lacks a part.

    `extra` of this package installs it; `otherwise` is another way out.
    """
    try:
        yield
    except ImportError as error:
        what = f"{purpose}: {error}"  # a version that lacks a name
        if isinstance(error, ModuleNotFoundError):
            what = f"{purpose} needs {error.name}, which is not installed"
        raise ConfigError(f"{what}: {install_line(f'suffice[{extra}]')}{otherwise}.") from error


def install_line(wanted: str, folder: str = "") -> str:
    """Return the command that adds a distribution, or an extra, from where this one came."""
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.request import url2pathname

    try:
        text = distribution("suffice").read_text("direct_url.json")
        origin: dict[str, Any] = json.loads(text or "{}")
    except PackageNotFoundError:  # it runs from its sources
        origin = {"url": Path(__file__).parents[1].as_uri()}
    url, revision = origin.get("url", ""), origin.get("vcs_info", {})
    if revision:
        subfolder = f"#subdirectory={folder}" if folder else ""
        wanted += f" @ {revision['vcs']}+{url}@{revision['commit_id']}{subfolder}"
    elif url.startswith("file:") and not (folder and "archive_info" in origin):
        extras = re.sub("^[^[]*", "", wanted)
        wanted = f"{Path(url2pathname(url.removeprefix('file://')), folder)}{extras}"
    return f"pip install {shlex.quote(wanted)}"
