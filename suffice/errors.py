"""Every error a user can meet, and the sentence it carries.

SufficeError
├── ConfigError       a value, name or combination that is not legal        (ValueError)
├── ShapeError        a tensor whose shape does not fit                     (ValueError)
├── MaskError         a mask of the wrong type                              (TypeError)
├── StateError        an object used at a moment when it cannot be          (RuntimeError)
├── UnsupportedError  an implementation asked by name that cannot do this   (NotImplementedError)
├── DataError         a data set that is absent, truncated or altered       (ValueError)
└── CheckpointError   a file of weights that cannot be read or written      (ValueError)

A message says what was given, what is legal and what to do. The command line prints it as one
sentence and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SufficeError(Exception):
    """Base of all errors raised on purpose by this library."""


class ConfigError(SufficeError, ValueError):
    """A value, a name or a combination of values is not legal."""


class ShapeError(SufficeError, ValueError):
    """A tensor's shape does not fit the call."""


class MaskError(SufficeError, TypeError):
    """A mask is not boolean."""


class StateError(SufficeError, RuntimeError):
    """An object was used at a moment when it cannot be."""


class UnsupportedError(SufficeError, NotImplementedError):
    """An implementation was asked for by name and cannot do what was asked."""


class DataError(SufficeError, ValueError):
    """A data set is absent, truncated or altered."""


class CheckpointError(SufficeError, ValueError):
    """A file of weights cannot be read or written."""


def did_you_mean(name: object, legal: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest legal one, if one is near.

    Example:
        >>> did_you_mean("eficient", ["standard", "efficient"]), did_you_mean("x", ["standard"])
        ("; did you mean 'efficient'?", '.')
    """
    near = difflib.get_close_matches(str(name), list(legal), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else "."


def unknown(what: str, name: object, legal: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not in a table, with the nearest legal one.

    Example:
        >>> str(unknown("mechanism", "eficient", ["standard", "efficient"]))
        "unknown mechanism 'eficient'; did you mean 'efficient'? Legal: efficient, standard."
    """
    names = sorted(legal)
    hint = did_you_mean(name, names)
    return ConfigError(f"unknown {what} {name!r}{hint} Legal: {', '.join(names) or 'none'}.")
