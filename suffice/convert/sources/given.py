"""The entries of a config.json of transformers, read one by one and checked."""

from __future__ import annotations

import math
from typing import Any

from suffice.errors import ConfigError

DEEPEST = 1 << 10  # layers; a hostile number would be built block by block


class Given:
    """A configuration.

    Args:
        entries: the content of its file.
        where: the file, for errors.
    """

    def __init__(self, entries: dict[str, Any], where: object) -> None:
        self.entries, self.where = entries, where

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            ConfigError: if it is none.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise ConfigError(
                f"{self.where}: {name}={found!r:.40} is no whole number of at least 1."
            )
        return found

    def depth(self, name: str) -> int:
        """Return a number of layers.

        Raises:
            ConfigError: if it is none, or more than any model has.
        """
        found = self.size(name)
        if found > DEEPEST:
            raise ConfigError(
                f"{self.where}: {name}={found!r:.40} layers are more than the {DEEPEST:,} that are "
                "read."
            )
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            ConfigError: if it is none.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if not _is_finite(found):
            raise ConfigError(f"{self.where}: {name}={found!r:.40} is no finite number.")
        return float(found)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether something is on.

        Raises:
            ConfigError: if it is neither true nor false.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if not isinstance(found, bool):
            raise ConfigError(f"{self.where}: {name}={found!r:.40} is neither true nor false.")
        return found

    def only(self, name: str, *legal: Any) -> Any:
        """Return an entry that may hold certain values alone; the first is the default.

        Raises:
            ConfigError: if it holds another, which no model here computes.
        """
        found = self.entries.get(name)
        found = legal[0] if found is None else found
        if found not in legal:
            told = " or ".join(map(repr, legal))
            raise ConfigError(
                f"{self.where}: {name}={found!r:.60} is nothing that a model here computes; only "
                f"{told} is."
            )
        return found


def _is_finite(found: object) -> bool:
    try:
        return type(found) in (int, float) and math.isfinite(found)
    except OverflowError:  # a whole number of hundreds of digits
        return False
