"""Rotary positions as a config.json of transformers tells them."""

from __future__ import annotations

from suffice.convert.sources.given import Given
from suffice.errors import ConfigError
from suffice.positions import LinearScaling, Llama3Scaling, Rope, YarnScaling
from suffice.positions.scaling import Scaling

LEGAL = "default, linear, llama3 and yarn"


def rope_of(given: Given, head_dim: int, layout: str = "half") -> Rope:
    """Return the rotary positions of a configuration, in its older or newer words.

    Args:
        given: the configuration.
        head_dim: width of a head.
        layout: of the pairs, see `Rope`.

    Raises:
        ConfigError: for a kind of scaling that is not known here.
    """
    entries = dict(given.entries)
    nested = entries.get("rope_parameters") or entries.get("rope_scaling") or {}
    if not isinstance(nested, dict) or any(isinstance(one, dict) for one in nested.values()):
        raise ConfigError(
            f"{given.where}: rope_parameters={nested!r:.80} differ by kind of layer, which is not "
            "read."
        )
    one = Given({**entries, **nested}, given.where)
    share = one.number("partial_rotary_factor", 1.0)
    features = int(head_dim * share)
    return Rope(
        one.number("rope_theta", 10_000.0),
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
        amplitude = one.entries.get("attention_factor")
        return YarnScaling(
            one.number("factor"),
            length=one.size("original_max_position_embeddings", longest),
            fast=one.number("beta_fast", 32.0),
            slow=one.number("beta_slow", 1.0),
            attention_factor=None if amplitude is None else float(amplitude),
            truncate=one.flag("truncate", default=True),
        )
    raise ConfigError(f"{one.where}: rotary scaling {kind!r:.40} is not known; {LEGAL} are.")
