"""The maps of an inexact conversion: in closed form, or the usual starts."""

from __future__ import annotations

from suffice.convert.latent import latent, truncated
from suffice.convert.maps import Maps
from suffice.convert.moments import Moments
from suffice.convert.sharing import averaged, shared
from suffice.convert.slices import dropped, sliced_keys, sliced_values, with_groups
from suffice.convert.target import Step
from suffice.errors import ConfigError
from suffice.spec import AttentionSpec

NAIVE = {
    "gqa": "average",
    "optimised": "dropped W_V",
    "efficient": "dropped W_K and W_V",
    "super": "dropped W_K and W_V",
    "latent": "truncated weights",
    "window": "cut",
}
"""How the usual start of each change is called."""
KEYLESS = ("efficient", "super")  # changes after which keys are columns


def fitted(
    step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec, moments: Moments
) -> Maps:
    """Return the maps that lose least by one change, before the output map is refitted.

    Args:
        step: the change; no window, which changes no map.
        maps: of the layer.
        spec: of the layer.
        after: its composition then.
        moments: of the layer's inputs.

    Raises:
        ConfigError: if the layer mixes its values along the sequence, or norms stand between keys
            and queries that would have to take over what keys lose.
    """
    _refuse_mixing(step, spec)
    _refuse_norm(step, spec)
    if step.name == "gqa":
        return shared(_expanded(maps, after), spec, after.kv_heads, moments)
    if step.name == "latent":
        return latent(maps, after.head_width, moments, bias=spec.bias)
    grouped = with_groups(_expanded(maps, after), spec, after.kv_heads, moments)
    sliced = sliced_values(grouped, after.kv_heads, moments, bias=spec.bias)
    return sliced if step.name == "optimised" else sliced_keys(sliced, spec, moments)


def naive(step: Step, maps: Maps, spec: AttentionSpec, after: AttentionSpec) -> Maps:
    """Return the maps that are usually taken for one change, which look at no text.

    Raises:
        ConfigError: if the layer mixes its values along the sequence.
    """
    if step.name == "window":
        return maps
    _refuse_mixing(step, spec)
    if step.name == "gqa":
        return averaged(_expanded(maps, after), after.kv_heads)
    if step.name == "latent":
        return truncated(maps, after.head_width)
    return dropped(_expanded(maps, after), after.kv_heads, keys=step.name != "optimised")


def _expanded(maps: Maps, after: AttentionSpec) -> Maps:
    """Return maps with a head for each query where groups before and after do not nest."""
    nested = len(maps.k) % after.kv_heads == 0 or after.kv_heads % len(maps.k) == 0
    return maps if nested else maps.with_heads(len(maps.q))


def _refuse_mixing(step: Step, spec: AttentionSpec) -> None:
    if spec.mixing.mixes:
        raise ConfigError(
            f"{step}: the layer mixes its values by {spec.mixing!r}, which no closed form here "
            "looks through; keep it, or convert it to standard."
        )


def _refuse_norm(step: Step, spec: AttentionSpec) -> None:
    if spec.norm.norms and step.name in KEYLESS:
        raise ConfigError(
            f"{step}: {type(spec.norm).__name__} stands between keys and queries, so no map of the "
            "queries can make up for keys that are columns; take optimised, which keeps the keys, "
            "or naive=True (--naive)."
        )
