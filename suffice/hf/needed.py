"""The one sentence that says what this part of the package needs."""

from __future__ import annotations

from importlib.util import find_spec

from suffice.errors import ConfigError


def check_installed(*libraries: str) -> None:
    """Refuse to go on without libraries that are an optional extra.

    Raises:
        ConfigError: naming the first that is absent.
    """
    for library in libraries:
        if find_spec(library) is None:
            raise ConfigError(
                f"suffice.hf needs {library}, which is not installed: pip install 'suffice[hf]'."
            )
