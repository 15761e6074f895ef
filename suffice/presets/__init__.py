"""Published mechanisms by name: each only assembles axis values.

Arguments that a function here does not describe are those of `standard`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.presets.features import infini, linear, linformer, performer, rfa
from suffice.presets.grouped import differential, gqa, mla, mqa, qk_norm
from suffice.presets.paper import efficient, optimised, standard, super_attention, toeplitz_super
from suffice.presets.sparse import (
    bigbird,
    checked,
    etc,
    longformer,
    mistral,
    sliding_window,
    sparse_fixed,
    sparse_strided,
    star_transformer,
)
from suffice.spec import AttentionSpec

PRESETS: dict[str, Callable[..., AttentionSpec]] = {
    function.__name__: function
    for function in (
        standard,
        optimised,
        efficient,
        super_attention,
        gqa,
        mqa,
        qk_norm,
        mla,
        differential,
        sliding_window,
        mistral,
        longformer,
        etc,
        bigbird,
        star_transformer,
        sparse_strided,
        sparse_fixed,
        infini,
        linear,
        performer,
        rfa,
        linformer,
        toeplitz_super,
    )
}

TITLES = {
    "standard": "Multi-head attention",
    "optimised": "Optimised attention",
    "efficient": "Efficient attention",
    "super_attention": "Super Attention",
    "gqa": "GQA",
    "mqa": "MQA",
    "qk_norm": "QK-norm",
    "mla": "MLA",
    "differential": "Differential attention",
    "sliding_window": "Sliding window",
    "mistral": "Mistral",
    "longformer": "Longformer",
    "etc": "ETC",
    "bigbird": "BigBird",
    "star_transformer": "Star-Transformer",
    "sparse_strided": "Sparse Transformer, strided",
    "sparse_fixed": "Sparse Transformer, fixed",
    "infini": "Infini-attention",
    "linear": "Linear attention",
    "performer": "Performer",
    "rfa": "RFA",
    "linformer": "Linformer",
    "toeplitz_super": "Toeplitz Super Attention",
}
"""The name under which each mechanism was published."""

UNLESS_CAUSAL = ("bigbird",)  # only a causal layer can do without a length

__all__ = ["PRESETS", "TITLES", "needs_length", "preset", "schedule", "takes_length", *PRESETS]


def preset(name: str, /, d_model: int, num_heads: int, **options: Any) -> AttentionSpec:
    """Return the spec of a published mechanism.

    Args:
        name: of the mechanism, see `PRESETS`.
        d_model: features.
        num_heads: query heads.
        **options: of that preset's function; others are refused.

    Raises:
        ConfigError: for an unknown name or option, or a missing one.

    Example:
        >>> preset("efficient", 128, 4).cost(length=64).parameters
        33024
    """
    if name not in PRESETS:
        raise unknown("mechanism", name, PRESETS)
    legal = inspect.signature(PRESETS[name]).parameters
    for option in options:
        if option not in legal:
            raise unknown(f"option of {name}", option, legal)
    if needs_length(name) and name not in UNLESS_CAUSAL and "length" not in options:
        raise ConfigError(f"{name} fixes the length of its input; give length=, in tokens.")
    causal = options.get("causal", False)
    if not isinstance(causal, bool):
        raise ConfigError(f"causal={causal!r}: give True or False.")
    return PRESETS[name](d_model, num_heads, **options)


def schedule(
    name: str, d_model: int, num_heads: int, *, depth: int, **options: Any
) -> list[AttentionSpec]:
    """Return the specs of a published mechanism for each layer of a model.

    Most mechanisms are the same in every layer; one whose function takes `layer` differs.

    Args:
        name: of the mechanism, see `PRESETS`.
        d_model: features.
        num_heads: query heads.
        depth: layers.
        **options: as of `preset`, without the layer.

    Raises:
        ConfigError: as `preset`, and for a depth below 1.

    Example:
        >>> [str(s.pattern) for s in schedule("mistral", 64, 4, depth=2, window=8, full_every=2)]
        ['Window(size=8)', 'Full()']
    """
    layers = range(checked("depth", depth))
    if "layer" in options:
        raise ConfigError(
            f"layer={options['layer']!r}: a schedule numbers its layers itself; leave it out."
        )
    if name in PRESETS and "layer" in inspect.signature(PRESETS[name]).parameters:
        return [preset(name, d_model, num_heads, layer=layer, **options) for layer in layers]
    return [preset(name, d_model, num_heads, **options)] * depth


def needs_length(name: str) -> bool:
    """Return whether a mechanism needs the maximum length, at least when it is not causal."""
    length = inspect.signature(PRESETS[name]).parameters.get("length")
    required = length is not None and length.default is inspect.Parameter.empty
    return required or name in UNLESS_CAUSAL


def takes_length(name: str) -> bool:
    """Return whether a mechanism takes the longest input."""
    return "length" in inspect.signature(PRESETS[name]).parameters
