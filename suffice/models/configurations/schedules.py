"""The attention of each layer of a named configuration."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.models.lm import LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition, Position
from suffice.presets import PRESETS, schedule
from suffice.presets.sparse import checked
from suffice.spec import AttentionSpec

Configured = tuple[LMConfig, list[AttentionSpec]]
"""The sizes of a model and the attention of each of its blocks: `config.build(specs)`."""


def layers(
    mechanism: str,
    config: LMConfig,
    num_heads: int,
    *,
    position: Position | None = None,
    window: int | None = None,
    full_every: int | None = None,
    num_kv_heads: int | None = None,
    softmax_every: int | None = None,
    **options: Any,
) -> list[AttentionSpec]:
    """Return causal specs of a published mechanism for each block of a model.

    Biases, dropout and the longest input are the config's, where the mechanism has them.

    Args:
        mechanism: its name, see `suffice.presets.PRESETS`.
        config: the sizes.
        num_heads: query heads.
        position: of each layer whose mechanism has none of its own.
        window: positions at a distance below it are seen, the own included. A mechanism that has
            a window takes it as its own, any other one is restricted to it as well.
        full_every: n = layers n - 1, 2 n - 1, ... see every earlier position instead: 6 is five
            windows to one full layer.
        num_kv_heads: of each layer. A mechanism that shares heads takes them as its own, any other
            one is given as many.
        softmax_every: n = layers n - 1, 2 n - 1, ... are standard attention instead: 4 is three of
            the mechanism to one of it.
        **options: others of the mechanism's function; unknown ones are refused.

    Raises:
        ConfigError: for an unknown mechanism or option, sizes that do not fit, or a full_every
            that changes nothing.

    Example:
        >>> sizes = dict(vocabulary_size=9, length=32, d_model=8, depth=3, mlp_width=8)
        >>> specs = layers("efficient", LMConfig(**sizes), 2, window=4, full_every=3)
        >>> [str(s.pattern) for s in specs][1:]
        ['And(parts=(Window(size=4), Causal()))', 'Causal()']
    """
    if mechanism not in PRESETS:
        raise unknown("mechanism", mechanism, PRESETS)
    takes = inspect.signature(PRESETS[mechanism]).parameters
    of_config = {"bias": config.bias, "dropout": config.dropout, "length": config.length}
    options = {name: v for name, v in of_config.items() if name in takes} | options
    asked = {"window": window, "full_every": full_every, "num_kv_heads": num_kv_heads}
    options |= {name: v for name, v in asked.items() if name in takes and v is not None}
    specs = schedule(
        mechanism, config.d_model, num_heads, depth=config.depth, causal=True, **options
    )
    if window is not None and "window" not in takes:
        specs = [replace(one, pattern=Window(window) & one.pattern) for one in specs]
    if full_every is not None and "full_every" not in takes:
        specs = _opened(specs, full_every)
    if num_kv_heads is not None and "num_kv_heads" not in takes:
        specs = [replace(one, num_kv_heads=num_kv_heads) for one in specs]
    if softmax_every is not None:
        plain = layers("standard", config, num_heads, num_kv_heads=num_kv_heads)
        specs = _replaced(specs, softmax_every, plain)
    if position is None:
        return specs
    return [replace(s, position=position) if s.position == NoPosition() else s for s in specs]


def _replaced(
    specs: list[AttentionSpec], every: int, others: list[AttentionSpec]
) -> list[AttentionSpec]:
    """Return the specs with every so many of them from others."""
    checked("softmax_every", every)
    numbered = enumerate(zip(specs, others, strict=True), start=1)
    return [one if n % every else other for n, (one, other) in numbered]


def _opened(specs: list[AttentionSpec], full_every: int) -> list[AttentionSpec]:
    """Return the specs with every so many of them seeing all earlier positions."""
    checked("full_every", full_every)
    if all(one.pattern == Causal() for one in specs):
        raise ConfigError(
            f"full_every={full_every}: every layer sees all earlier positions already; give a "
            "window= for the others."
        )
    numbered = enumerate(specs, start=1)
    return [one if n % full_every else replace(one, pattern=Causal()) for n, one in numbered]
