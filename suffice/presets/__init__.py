"""Published mechanisms by name: each only assembles axis values.

Arguments that a function here does not describe are those of `standard`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from suffice.errors import ConfigError, check_known
from suffice.utils import ByName, attributes

if TYPE_CHECKING:
    from suffice.presets.features import infini, linear, linformer, performer, rfa
    from suffice.presets.grouped import cla, differential, forgetting, gqa, mla, mqa, qk_norm, xsa
    from suffice.presets.paper import (
        efficient,
        optimised,
        standard,
        super_attention,
        toeplitz_super,
    )
    from suffice.presets.recurrent import (
        deltanet,
        gated_deltanet,
        gla,
        lightning,
        mamba2,
        retnet,
    )
    from suffice.presets.sparse import (
        bigbird,
        etc,
        longformer,
        mistral,
        sliding_window,
        sparse_fixed,
        sparse_strided,
        star_transformer,
    )
    from suffice.spec import AttentionSpec

_PUBLISHED = {
    "standard": ("paper", "Multi-head attention"),
    "optimised": ("paper", "Optimised attention"),
    "efficient": ("paper", "Efficient attention"),
    "super_attention": ("paper", "Super Attention"),
    "gqa": ("grouped", "GQA"),
    "mqa": ("grouped", "MQA"),
    "cla": ("grouped", "Cross-layer attention"),
    "qk_norm": ("grouped", "QK-norm"),
    "xsa": ("grouped", "Exclusive self-attention"),
    "forgetting": ("grouped", "Forgetting attention"),
    "mla": ("grouped", "MLA"),
    "differential": ("grouped", "Differential attention"),
    "sliding_window": ("sparse", "Sliding window"),
    "mistral": ("sparse", "Mistral"),
    "longformer": ("sparse", "Longformer"),
    "etc": ("sparse", "ETC"),
    "bigbird": ("sparse", "BigBird"),
    "star_transformer": ("sparse", "Star-Transformer"),
    "sparse_strided": ("sparse", "Sparse Transformer, strided"),
    "sparse_fixed": ("sparse", "Sparse Transformer, fixed"),
    "infini": ("features", "Infini-attention"),
    "linear": ("features", "Linear attention"),
    "performer": ("features", "Performer"),
    "rfa": ("features", "RFA"),
    "linformer": ("features", "Linformer"),
    "retnet": ("recurrent", "RetNet"),
    "lightning": ("recurrent", "Lightning attention"),
    "mamba2": ("recurrent", "Mamba-2"),
    "gla": ("recurrent", "Gated linear attention"),
    "deltanet": ("recurrent", "DeltaNet"),
    "gated_deltanet": ("recurrent", "Gated DeltaNet"),
    "toeplitz_super": ("paper", "Toeplitz Super Attention"),
}
"""Module and title, the name under which it was published, of each mechanism."""
PRESETS = ByName({name: f"{__name__}.{module}" for name, (module, _) in _PUBLISHED.items()})
"""The function that returns the spec of each mechanism."""
TITLES = {name: title for name, (_, title) in _PUBLISHED.items()}
"""The name under which each mechanism was published."""

UNLESS_CAUSAL = ("bigbird",)  # only a causal layer can do without a length

Shares = int | Sequence[int | None]
"""Which layers of a model read keys and values of others, see `share`."""

__all__ = [
    "PRESETS",
    "TITLES",
    "Shares",
    "is_always_causal",
    "needs_length",
    "preset",
    "schedule",
    "share",
    "takes_length",
    *PRESETS,
]
__getattr__ = attributes(__name__, PRESETS)


def preset(name: str, /, d_model: int, num_heads: int, **options: Any) -> AttentionSpec:
    """Return the spec of a published mechanism.

    Args:
        name: name of the mechanism, see `PRESETS`.
        d_model: features.
        num_heads: query heads.
        **options: options of that preset's function; others are refused.

    Raises:
        ConfigError: for an unknown name or option, or a missing one.

    Example:
        >>> preset("efficient", 128, 4).cost(length=64).parameters
        33024
    """
    check_known("mechanism", name, PRESETS)
    legal = inspect.signature(PRESETS[name]).parameters
    for option in options:
        check_known(f"option of {name}", option, legal)
    if needs_length(name) and name not in UNLESS_CAUSAL and "length" not in options:
        raise ConfigError(f"{name} fixes the length of its input; give length=, in tokens.")
    causal = options.get("causal", False)
    if not isinstance(causal, bool):
        raise ConfigError(f"causal={causal!r}: give True or False.")
    return PRESETS[name](d_model, num_heads, **options)


def schedule(
    name: str,
    d_model: int,
    num_heads: int,
    *,
    depth: int,
    shares: Shares | None = None,
    **options: Any,
) -> list[AttentionSpec]:
    """Return the specs of a published mechanism for each layer of a model.

    Most mechanisms are the same in every layer; one whose function takes `layer` differs.

    Args:
        name: name of the mechanism, see `PRESETS`.
        d_model: features.
        num_heads: query heads.
        depth: layers.
        shares: layers that read keys and values of others, see `share`; None: no layer does.
        **options: options of `preset`, without the layer.

    Raises:
        ConfigError: as `preset` and `share`, and for a depth below 1.

    Example:
        >>> [str(s.pattern) for s in schedule("mistral", 64, 4, depth=2, window=8, full_every=2)]
        ['Window(size=8)', 'Full()']
    """
    from suffice.presets.sparse import checked

    layers = range(checked("depth", depth))
    if "layer" in options:
        raise ConfigError(
            f"layer={options['layer']!r}: a schedule numbers its layers itself; leave it out."
        )
    if name in PRESETS and "layer" in inspect.signature(PRESETS[name]).parameters:
        specs = [preset(name, d_model, num_heads, layer=layer, **options) for layer in layers]
    else:
        specs = [preset(name, d_model, num_heads, **options)] * depth
    return specs if shares is None else share(specs, shares)


def share(specs: Sequence[AttentionSpec], shares: Shares) -> list[AttentionSpec]:
    """Return specs of a model's layers of which some read keys, values and cache of earlier ones.

    Such a layer has maps of its queries and of its output alone, so that the cache is smaller by
    what it would have kept: half as large where every second layer shares.

    Args:
        specs: specs of the layers, in order.
        shares: a number N: of N neighbouring layers the first one makes keys and values for all.
            Or for each layer the number of the one whose keys and values it reads, None: its own.

    Raises:
        ConfigError: for a number below 1, another number of entries, or a layer that cannot share.

    Source: Brandon et al. 2024, arXiv:2405.12981 (neighbouring layers); Sun et al. 2024,
        arXiv:2405.05254 (the upper half reads one layer), without its self-decoder's windows.

    Example:
        >>> specs = share([preset("standard", 64, 4, causal=True)] * 4, 2)
        >>> [s.shares for s in specs], [s.state_bytes(100) for s in specs]
        ([None, 0, None, 2], [51200, 0, 51200, 0])
    """
    from suffice.mixing import NoMixing
    from suffice.presets.sparse import checked
    from suffice.spec import check_shares

    if isinstance(shares, Sequence) and not isinstance(shares, str):
        sources = list(shares)
    else:
        group = checked("shares", shares)
        sources = [None if at % group == 0 else at - at % group for at in range(len(specs))]
    if len(sources) != len(specs):
        raise ConfigError(
            f"shares has {len(sources)} entries for {len(specs)} layers; give one for each, None "
            "for a layer with its own keys and values."
        )
    shared = [
        spec if source is None else replace(spec, shares=source, mixing=NoMixing())
        for spec, source in zip(specs, sources, strict=True)
    ]
    check_shares(shared)
    return shared


def needs_length(name: str) -> bool:
    """Return whether a mechanism needs the maximum length, at least when it is not causal."""
    length = inspect.signature(PRESETS[name]).parameters.get("length")
    required = length is not None and length.default is inspect.Parameter.empty
    return required or name in UNLESS_CAUSAL


def is_always_causal(name: str) -> bool:
    """Return whether a mechanism has no form that looks ahead.

    Example:
        >>> is_always_causal("retnet"), is_always_causal("standard")
        (True, False)
    """
    return inspect.signature(PRESETS[name]).parameters["causal"].default is True


def takes_length(name: str) -> bool:
    """Return whether a mechanism takes the longest input."""
    return "length" in inspect.signature(PRESETS[name]).parameters
