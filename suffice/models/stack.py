"""One attention spec for each block of a model."""

from __future__ import annotations

from collections.abc import Sequence

from suffice.errors import ConfigError
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
        ConfigError: if their number, width or length does not fit the model.
    """
    specs = [spec] * depth if isinstance(spec, AttentionSpec) else list(spec)
    if len(specs) != depth:
        raise ConfigError(f"{len(specs)} specs for {depth} blocks; give one, or one for each.")
    for number, one in enumerate(specs):
        if one.d_model != d_model:
            raise ConfigError(
                f"block {number} has a spec of d_model={one.d_model} in a model of "
                f"d_model={d_model}; they must be equal."
            )
        if one.max_length is not None and one.max_length < length:
            raise ConfigError(
                f"block {number} has a spec for at most {one.max_length} tokens in a model of "
                f"{length}; build it with length={length}."
            )
    return specs
