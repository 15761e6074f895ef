"""Language models by name: functions that return their sizes and the attention of each block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suffice.errors import unknown
from suffice.models.configurations.llama import (
    efficient_1b,
    llama_15m,
    llama_110m,
    tinyllama_1b,
)
from suffice.models.configurations.nanogpt import gpt2_124m, nanogpt_char, nanogpt_char_cpu
from suffice.models.configurations.schedules import Configured, layers

CONFIGURATIONS: dict[str, Callable[..., Configured]] = {
    "nanogpt_char": nanogpt_char,
    "nanogpt_char_cpu": nanogpt_char_cpu,
    "gpt2_124m": gpt2_124m,
    "llama_15m": llama_15m,
    "llama_110m": llama_110m,
    "tinyllama_1b": tinyllama_1b,
    "efficient_1b": efficient_1b,
}

__all__ = [
    "CONFIGURATIONS",
    "Configured",
    "configuration",
    "efficient_1b",
    "gpt2_124m",
    "layers",
    "llama_15m",
    "llama_110m",
    "nanogpt_char",
    "nanogpt_char_cpu",
    "tinyllama_1b",
]


def configuration(name: str, mechanism: str | None = None, **options: Any) -> Configured:
    """Return a named language model's sizes and the attention of each of its blocks.

    Args:
        name: of the model, see `CONFIGURATIONS`.
        mechanism: of its attention; None = the model's own.
        **options: of that model's function.

    Raises:
        ConfigError: for an unknown name, mechanism or option, or sizes that do not fit.

    Example:
        >>> config, specs = configuration("nanogpt_char_cpu", "efficient")
        >>> config.build(specs).config.depth
        4
    """
    if name not in CONFIGURATIONS:
        raise unknown("configuration", name, CONFIGURATIONS)
    build = CONFIGURATIONS[name]
    return build(**options) if mechanism is None else build(mechanism, **options)
