"""Llama-like models: rotary positions, RMS norms, SwiGLU, no biases."""

from __future__ import annotations

import inspect
from typing import Any

from suffice.models.configurations.schedules import Configured, layers
from suffice.models.lm import LMConfig
from suffice.positions import Rope
from suffice.presets import PRESETS


def llama_15m(
    mechanism: str = "standard",
    *,
    vocabulary_size: int = 32_000,
    length: int = 256,
    num_heads: int = 6,
    dropout: float = 0.0,
    **options: Any,
) -> Configured:
    """Return the shape of stories15M: 6 layers of 288 features, 15,191,712 parameters.

    Args:
        mechanism: see `layers`.
        vocabulary_size: tokens; 32,000 are Llama 2's.
        length: tokens; longer rows are read too, as far as the mechanism does.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Source: llama2.c, README, "models". No difference with mechanism="standard".
    """
    return _llama(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=288,
        depth=6,
        dropout=dropout,
        mlp_width=768,
    )


def llama_110m(
    mechanism: str = "standard",
    *,
    vocabulary_size: int = 32_000,
    length: int = 1024,
    num_heads: int = 12,
    dropout: float = 0.0,
    **options: Any,
) -> Configured:
    """Return the shape of stories110M: 12 layers of 768 features, 109,529,856 parameters.

    Args:
        mechanism: see `layers`.
        vocabulary_size: tokens; 32,000 are Llama 2's.
        length: tokens; longer rows are read too, as far as the mechanism does.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Source: llama2.c, README, "models". No difference with mechanism="standard".
    """
    return _llama(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=768,
        depth=12,
        dropout=dropout,
        mlp_width=2048,
    )


def tinyllama_1b(
    mechanism: str = "gqa",
    *,
    vocabulary_size: int = 32_000,
    length: int = 2048,
    num_heads: int = 32,
    dropout: float = 0.0,
    **options: Any,
) -> Configured:
    """Return the shape of TinyLlama: 22 layers of 2048 features, 1,100,048,384 parameters.

    Args:
        mechanism: see `layers`; one that shares key/value heads has 4 of them, unless
            num_kv_heads= is given.
        vocabulary_size: tokens; 32,000 are Llama 2's.
        length: tokens; longer rows are read too, as far as the mechanism does.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Source: Zhang et al. 2024, arXiv:2401.02385, table 2. No difference with mechanism="gqa".
    """
    if mechanism in PRESETS and "num_kv_heads" in inspect.signature(PRESETS[mechanism]).parameters:
        options = {"num_kv_heads": 4, **options}
    return _llama(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=2048,
        depth=22,
        dropout=dropout,
        mlp_width=5632,
        tied=False,
    )


def efficient_1b(
    mechanism: str = "efficient",
    *,
    vocabulary_size: int = 32_000,
    length: int = 2048,
    num_heads: int = 1,
    dropout: float = 0.0,
    **options: Any,
) -> Configured:
    """Return an Efficient Attention model of one wide head: 10 layers of 3072 features.

    1,140,390,912 parameters; the authors of Efficient Attention published it.

    Args:
        mechanism: see `layers`.
        vocabulary_size: tokens; 32,000 are Llama 2's.
        length: tokens; longer rows are read too, as far as the mechanism does.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Example:
        >>> config, specs = efficient_1b()
        >>> sum(p.numel() for p in config.build(specs, device="meta").parameters())
        1140390912

    Source: the published configuration of the authors of Hosseini et al. 2024, arXiv:2403.01643.
    """
    return _llama(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=3072,
        depth=10,
        dropout=dropout,
        mlp_width=8192,
        tied=False,
        eps=1e-6,
    )


def _llama(mechanism: str, num_heads: int, options: dict[str, Any], **sizes: Any) -> Configured:
    config = LMConfig(activation="swiglu", norm="rms", positions="none", bias=False, **sizes)
    return config, layers(mechanism, config, num_heads, position=Rope(), **options)
