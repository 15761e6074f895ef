"""Checks of a model's sizes, made when they are written down and not when they are used."""

from __future__ import annotations

from collections.abc import Iterable

from suffice.errors import ConfigError, unknown

POSITIONS = ("learned", "sinusoidal", "none")
"""What a model can add to its tokens for where they stand."""


def check_sizes(config: object, *names: str) -> None:
    """Refuse sizes that are not whole numbers above 0; a tuple holds several.

    Raises:
        ConfigError: with every size that is not legal.
    """
    wrong = [
        f"{name}={getattr(config, name)!r}"
        for name in names
        if not all(map(_is_size, _several(getattr(config, name))))
    ]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: give whole numbers of at least 1.")


def check_shares(config: object, *names: str) -> None:
    """Refuse probabilities of dropping outside [0, 1).

    Raises:
        ConfigError: with every one that is not legal.
    """
    wrong = [f"{n}={getattr(config, n)!r}" for n in names if not 0.0 <= getattr(config, n) < 1.0]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: give at least 0 and below 1.")


def check_positive(config: object, *names: str, such_as: str = "1e-5") -> None:
    """Refuse numbers that are not above 0.

    Args:
        config: the sizes.
        *names: of the fields.
        such_as: a usual value, to name.

    Raises:
        ConfigError: with every one that is not legal.
    """
    wrong = [f"{n}={getattr(config, n)!r}" for n in names if not getattr(config, n) > 0.0]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: give a number above 0, such as {such_as}.")


def check_name(config: object, name: str, legal: Iterable[str]) -> None:
    """Refuse a name that is not in a table.

    Raises:
        ConfigError: with the nearest legal name.
    """
    legal = tuple(legal)
    if getattr(config, name) not in legal:
        raise unknown(name, getattr(config, name), legal)


def _several(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else (value,)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
