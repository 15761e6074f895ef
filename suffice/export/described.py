"""A model in the form of a class of transformers: the same numbers, other maps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.maps import Maps, build, read
from suffice.convert.moments import attentions
from suffice.convert.sources import FAMILIES
from suffice.convert.sources.given import Given
from suffice.export.rotary import halved
from suffice.layers import Attention
from suffice.layers.sinusoidal import sinusoidal
from suffice.positions import Rope
from suffice.spec import AttentionSpec

TABLES = ("embedding.positions.weight", "positions.weight", "positions")


@torch.no_grad()
def described(model: nn.Module, config: dict[str, Any]) -> nn.Module:
    """Return the model that a config.json describes, computing what another computes.

    Keys and values that are columns become maps, shared heads are repeated where the class has
    none, rotary pairs come into its order, and what it adds and the model does not is zero.

    Args:
        model: in float32.
        config: what `config_of` returned for it.
    """
    target = FAMILIES[config["model_type"]].build(Given(config, "config.json"))
    goals, state = attentions(target), {}
    for name, layer in attentions(model).items():
        spec = goals[name].spec
        made = build(_arranged(read(layer), layer.spec, spec), spec, like=layer)
        _arrange_gains(made, layer.spec)
        state |= {f"{name}.{part}": tensor for part, tensor in made.state_dict().items()}
    own = model.state_dict()
    for name, tensor in target.state_dict().items():
        if name not in state:
            state[name] = own[name] if name in own else _absent(name, tensor, model)
    target.load_state_dict(state, assign=True)
    return target.eval()


def _arranged(maps: Maps, spec: AttentionSpec, goal: AttentionSpec) -> Maps:
    """Return the maps of a layer as the class has them."""
    maps = maps.with_heads(goal.kv_heads)
    q, k = maps.q, maps.k
    if not spec.norm.norms:  # which takes any factor away again
        q = q * (spec.score_scale / goal.score_scale)
    if isinstance(spec.position, Rope):
        q, k = halved(q, spec.position), halved(k, spec.position)
    return replace(maps, q=q, k=k)


def _arrange_gains(layer: Attention, was: AttentionSpec) -> None:
    """Bring the gains of normalised queries and keys into the class's order, a scale with them."""
    if not was.norm.norms:
        return
    layer.q_norm.weight *= was.score_scale / layer.spec.score_scale
    for norm in (layer.q_norm, layer.k_norm):
        norm.weight.copy_(halved(norm.weight[None, None].clone(), was.position)[0, 0])


def _absent(name: str, like: Tensor, model: nn.Module) -> Tensor:
    """Return what the class has and the model has not: zeros, or a table of computed positions."""
    if name in TABLES and model.config.positions == "sinusoidal":
        return sinusoidal(*like.shape, device=torch.device("cpu"), dtype=torch.float32)
    return torch.zeros(like.shape)
