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
