"""Rotary positions as a config.json of transformers tells them."""

from __future__ import annotations

from suffice.convert.sources.given import Given
from suffice.errors import ConfigError
from suffice.positions import LinearScaling, Llama3Scaling, Rope, YarnScaling
from suffice.positions.scaling import Scaling

LEGAL = "default, linear, llama3 and yarn"


def rope_of(
    given: Given,
    head_dim: int,
    layout: str = "half",
    *,
    theta: float = 10_000.0,
    share: float | None = 1.0,
) -> Rope:
    """Return the rotary positions of a configuration, in its older or newer words.

    Args:
        given: the configuration.
        head_dim: width of a head.
        layout: of the pairs, see `Rope`.
        theta: where none is given.
        share: of the features that turn, where none is given; None = all, and no other is legal.

    Raises:
        ConfigError: for a kind of scaling that is not known here, or words that contradict.
    """
    entries = dict(given.entries)
    newer, older = entries.get("rope_parameters") or {}, entries.get("rope_scaling") or {}
    if newer and older and newer != older:
        raise ConfigError(
            f"{given.where}: rope_parameters={newer!r:.80} and rope_scaling={older!r:.80} differ; "
            "leave the one that is true."
        )
    nested = newer or older
    if not isinstance(nested, dict) or any(isinstance(one, dict) for one in nested.values()):
        raise ConfigError(
            f"{given.where}: rope_parameters={nested!r:.80} differ by kind of layer, which is not "
            "read."
        )
    one = Given({**entries, **nested}, given.where)
    if share is None:
        share = one.only("partial_rotary_factor", 1.0)
    features = int(head_dim * one.number("partial_rotary_factor", share))
    return Rope(
        one.number("rope_theta", theta),
        layout=layout,
        features=None if features == head_dim else features,
        scaling=_scaling(one, nested.get("rope_type", nested.get("type", "default"))),
    )


def _scaling(one: Given, kind: object) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(one.number("factor"))
    longest = one.entries.get("max_position_embeddings")
    if kind == "llama3":
        return Llama3Scaling(
            one.number("factor"),
            length=one.size("original_max_position_embeddings", longest),
            low=one.number("low_freq_factor"),
            high=one.number("high_freq_factor"),
        )
    if kind == "yarn":
        for name in ("mscale", "mscale_all_dim"):
            one.only(name, None)
        told = one.entries.get("attention_factor") is not None
        return YarnScaling(
            one.number("factor"),
            length=one.size("original_max_position_embeddings", longest),
            fast=one.number("beta_fast", 32.0),
            slow=one.number("beta_slow", 1.0),
            attention_factor=one.number("attention_factor") if told else None,
            truncate=one.flag("truncate", default=True),
        )
    raise ConfigError(f"{one.where}: rotary scaling {kind!r:.40} is not known; {LEGAL} are.")
