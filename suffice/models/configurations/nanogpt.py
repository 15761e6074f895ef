"""The models of nanoGPT: GPT-2's shape, learned positions, layer norms, a tied head."""

from __future__ import annotations

from typing import Any

from suffice.models.configurations.schedules import Configured, layers
from suffice.models.lm import LMConfig


def nanogpt_char(
    mechanism: str = "standard",
    *,
    vocabulary_size: int = 65,
    length: int = 256,
    num_heads: int = 6,
    dropout: float = 0.2,
    bias: bool = False,
    **options: Any,
) -> Configured:
    """Return nanoGPT's character model: 6 layers of 384 features.

    Args:
        mechanism: see `layers`.
        vocabulary_size: characters; 65 are those of Tiny Shakespeare.
        length: tokens.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        bias: on all maps and norms.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Source: nanoGPT, config/train_shakespeare_char.py. No difference with mechanism="standard".
    """
    return _gpt(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=384,
        depth=6,
        dropout=dropout,
        bias=bias,
    )


def nanogpt_char_cpu(
    mechanism: str = "standard",
    *,
    vocabulary_size: int = 65,
    length: int = 64,
    num_heads: int = 4,
    dropout: float = 0.0,
    bias: bool = False,
    **options: Any,
) -> Configured:
    """Return nanoGPT's character model for laptops: 4 layers of 128 features.

    Args:
        mechanism: see `layers`.
        vocabulary_size: characters; 65 are those of Tiny Shakespeare.
        length: tokens.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        bias: on all maps and norms.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Source: nanoGPT, README, "I only have a macbook". No difference with mechanism="standard".
    """
    return _gpt(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=128,
        depth=4,
        dropout=dropout,
        bias=bias,
    )


def gpt2_124m(
    mechanism: str = "standard",
    *,
    vocabulary_size: int = 50_304,
    length: int = 1024,
    num_heads: int = 12,
    dropout: float = 0.0,
    bias: bool = False,
    **options: Any,
) -> Configured:
    """Return nanoGPT's GPT-2 of 124M parameters: 12 layers of 768 features.

    124,373,760 parameters, of which 786,432 are positions.

    Args:
        mechanism: see `layers`.
        vocabulary_size: GPT-2's 50,257 tokens, rounded up to a multiple of 64.
        length: tokens.
        num_heads: query heads.
        dropout: everywhere, on the attention's weights too where the mechanism has them.
        bias: on all maps and norms.
        **options: of the mechanism, window and full_every, see `layers`.

    Raises:
        ConfigError: for an unknown mechanism or option, or sizes that do not fit.

    Example:
        >>> config, specs = gpt2_124m("efficient", window=256, full_every=6)
        >>> sum(p.numel() for p in config.build(specs, device="meta").parameters())
        110217984

    Source: nanoGPT, train.py and config/train_gpt2.py. No difference with mechanism="standard".
    """
    return _gpt(
        mechanism,
        num_heads,
        options,
        vocabulary_size=vocabulary_size,
        length=length,
        d_model=768,
        depth=12,
        dropout=dropout,
        bias=bias,
    )


def _gpt(
    mechanism: str, num_heads: int, options: dict[str, Any], *, d_model: int, **sizes: Any
) -> Configured:
    config = LMConfig(d_model=d_model, mlp_width=4 * d_model, **sizes)
    return config, layers(mechanism, config, num_heads, **options)
