"""One attention spec for each block of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from suffice.errors import ConfigError, unknown
from suffice.spec import AttentionSpec


def specs_of_blocks(
    spec: AttentionSpec | Sequence[AttentionSpec], *, depth: int, d_model: int, length: int
) -> list[AttentionSpec]:
    """Return `depth` specs: the one given repeated, or the sequence given, checked.

    Args:
        spec: one spec for all blocks, or one for each.
        depth: blocks of the model.
        d_model: features of the model.
        length: the longest input of the model, tokens.

    Raises:
        ConfigError: if they are no specs, or their number, width or length does not fit the model.
    """
    specs = [spec] * depth if isinstance(spec, AttentionSpec) else spec
    given = isinstance(specs, Sequence) and all(isinstance(one, AttentionSpec) for one in specs)
    if not given:
        raise ConfigError(
            f"spec={spec!r:.60} is neither an AttentionSpec nor a list of them; give such as "
            f'preset("standard", d_model={d_model}, num_heads=4, causal=True).'
        )
    specs = list(specs)
    if len(specs) != depth:
        raise ConfigError(f"{len(specs)} specs for {depth} blocks; give one, or one for each.")
    for number, one in enumerate(specs):
        if one.d_model != d_model:
            raise ConfigError(
                f"block {number} has a spec of d_model={one.d_model} in a model of "
                f"d_model={d_model}; they must be equal."
            )
        if one.widths.d_memory != d_model:
            raise ConfigError(
                f"block {number} has a spec that reads a memory {one.widths.d_memory} wide in a "
                f"model of d_model={d_model}; leave d_memory out."
            )
        if one.max_length is not None and one.max_length < length:
            raise ConfigError(
                f"block {number} has a spec for at most {one.max_length} tokens in a model of "
                f"{length}; build it with length={length}."
            )
    return specs


def check_causal(specs: Sequence[AttentionSpec]) -> None:
    """Refuse attention that sees what comes later, in blocks that predict it.

    Raises:
        ConfigError: naming the first such block.
    """
    for number, one in enumerate(specs):
        if not one.mixing.keeps_keys:
            raise ConfigError(
                f"block {number} has mixing={one.mixing!r}, which sums the keys of a whole text, "
                "later ones too, and cannot predict the next token; choose another mechanism."
            )
        if not one.pattern.causal:
            raise ConfigError(
                f"block {number} has pattern={one.pattern!r}, which sees later tokens, in a model "
                "that predicts them; give causal specs, as preset(..., causal=True) returns."
            )


def check_crosses(specs: Sequence[AttentionSpec]) -> None:
    """Refuse attention that has no meaning between two texts.

    Raises:
        ConfigError: naming the first such block.
    """
    for number, one in enumerate(specs):
        if not one.pattern.crosses or one.position.absolute:
            raise ConfigError(
                f"block {number} has cross-attention with pattern={one.pattern!r} and "
                f"position={one.position!r}, which relate positions of one text; cross-attention "
                "has two: use Full() and NoPosition()."
            )


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


C = TypeVar("C")


def to_json(config: Any) -> dict[str, Any]:
    """Return the fields of a frozen dataclass of numbers and texts."""
    return dataclasses.asdict(config)


def from_json(cls: type[C], data: Any) -> C:
    """Rebuild a dataclass from `to_json`'s data.

    Raises:
        ConfigError: for data that is no dictionary, unknown fields, missing ones, or values that
            the class refuses.
    """
    name = cls.__name__
    if not isinstance(data, dict):
        raise ConfigError(f"{name} is stored as a dictionary of its fields, got {data!r}.")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise unknown(f"field of {name}", key, fields)
    required = {key for key, f in fields.items() if f.default is dataclasses.MISSING}
    missing = sorted(required - data.keys())
    if missing:
        raise ConfigError(f"a stored {name} needs {' and '.join(missing)}.")
    return cls(**data)
