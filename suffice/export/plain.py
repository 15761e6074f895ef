"""An attention layer as a graph can hold it: dense products and a mask, for any length.

Letters: B batch, H query heads, G key/value heads, T queries, P earlier keys, S = P + T keys,
D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.place import positions as count_real
from suffice.layers.state import LayerState
from suffice.memory import Dynamic
from suffice.mixing import Rows
from suffice.spec import AttentionSpec

BOTH, KEYS, VALUES, RAW = "keys_and_values", "keys", "values", "values_before_mixing"


class Places:
    """Where queries and keys stand in one call; what layers read alike is computed once.

    Args:
        queries: int [B or 1, T], positions.
        keys: int [B or 1, S], positions, -1 = padding.
        valid: bool [B, T], True = a real query; None = all are.
    """

    def __init__(self, queries: Tensor, keys: Tensor, valid: Tensor | None) -> None:
        self.queries, self.keys, self.valid = queries, keys, valid
        self._found: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was made for a key, or make it."""
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]

    def allowed(self, spec: AttentionSpec) -> Tensor:
        """Return True where a query may see a key: bool, broadcasts to [B, H, T, S]."""
        return self.once(spec.pattern, lambda: self._allowed(spec))

    def _allowed(self, spec: AttentionSpec) -> Tensor:
        q, k = self.queries[:, None, :, None], self.keys[:, None, None, :]
        seen = spec.pattern.allowed(q, k.clamp(min=0)) & (k >= 0)
        return seen if self.valid is None else seen & self.valid[:, None, :, None]

    def bias(self, spec: AttentionSpec) -> Tensor:
        """Return what the position adds to the products: float32, broadcasts to [B, H, T, S]."""
        q, k = self.queries[:, None, :, None], self.keys[:, None, None, :].clamp(min=0)
        made = lambda: spec.position.bias(spec.num_heads, q, k).float()  # noqa: E731
        return self.once((spec.position, spec.num_heads), made)


def held(spec: AttentionSpec) -> tuple[str, ...]:
    """Return what a layer keeps of the past, by name; each is [B, G, P, D].

    Raises:
        ConfigError: if it keeps no keys and values.

    Example:
        >>> from suffice import preset
        >>> held(preset("efficient", 8, 2, causal=True))
        ('keys_and_values',)
    """
    check(spec)
    state = LayerState(spec, Dynamic())
    if state.tied:
        return (BOTH,)
    return (KEYS, VALUES) if state.raw is None else (KEYS, VALUES, RAW)


def check(spec: AttentionSpec) -> None:
    """Refuse a layer that such a graph cannot hold.

    Raises:
        ConfigError: saying what it does.
    """
    if not spec.kernel.weighs_pairs:
        raise ConfigError(
            f"{type(spec.kernel).__name__} keeps sums of features, which are exported to nothing "
            "yet: a dense graph of them would cost what they save. Run it with `suffice generate`."
        )
    if spec.past.reads:
        raise ConfigError(
            f"{type(spec.past).__name__} compresses the past segment by segment, which depends on "
            "lengths as no graph for any length can. Run it with `suffice generate`."
        )


class Plain(nn.Module):
    """What an `Attention` computes, of what it holds; padding gives 0 and is never read.

    Args:
        layer: the layer; its maps are shared.

    Raises:
        ConfigError: if a graph cannot hold it.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]
    """

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        check(layer.spec)
        self.layer, self.spec = layer, layer.spec

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """Return the attended x of whole rows; valid [B, T], True = a real position."""
        at = torch.arange(x.shape[1], device=x.device)[None]
        keys = at
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
            at = count_real(valid, None)
            keys = at.masked_fill(~valid, -1)
        q, k, v, _ = self.layer._turned(x, x, at)
        k, v = self.layer.mixing(k, v, Rows() if valid is None else Rows(valid, at))
        return self._weighed(q, k, v, Places(at, keys, valid))

    def step(
        self, x: Tensor, places: Places, past: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the attended x that follows a past, and the past of what follows it.

        Args:
            x: [B, T, d_model].
            places: of queries and keys, with valid.
            past: what `held` names.
        """
        spec, layer = self.spec, self.layer
        x = x.masked_fill(~places.valid[..., None], 0.0)
        q = layer.queries(x)
        k, v = layer.keys_and_values(x)
        if layer.rotates:
            find = lambda: spec.position.turns(places.queries, layer.head_dim, q.dtype)  # noqa: E731
            turns = places.once((spec.position, layer.head_dim, "turns"), find)
            q, k = spec.position.turn(q, turns), spec.position.turn(k, turns)
        keys = torch.cat([past[0], k], dim=2)
        if len(past) == 1:
            return self._weighed(q, keys, keys, places), (keys,)
        raw = v
        if spec.mixing.mixes:
            raw = v.masked_fill(~places.valid[:, None, :, None], 0.0)
            v = layer.mixing.continued(
                past[-1] if len(past) > 2 else past[0],
                raw,
                places.queries,
                places.keys.clamp(min=0),
            )
        values = torch.cat([past[1], v], dim=2)
        kept = (keys, values)
        if len(past) > 2:  # noqa: PLR2004 - keys, values and those before the mixing
            kept = (*kept, torch.cat([past[2], raw], dim=2))
        return self._weighed(q, keys, values, places), kept

    def _weighed(self, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
        """Return the output of queries [B, H, T, D] of keys [B, G, S, D] and values."""
        spec, layer = self.spec, self.layer
        batch, heads, length, width = q.shape
        groups, keys = k.shape[1], k.shape[2]
        together = q.reshape(batch, groups, heads // groups * length, width)
        products = torch.matmul(together, k.transpose(2, 3)) * spec.score_scale
        products = products.reshape(batch, heads, length, keys)
        if spec.position.biases:
            products = products + places.bias(spec)
        if spec.mixing.keeps_keys:
            allowed = places.allowed(spec)
            # no sentinel is exactly "masked" where nothing is allowed: such a row is set to 0
            products = products.masked_fill(~allowed, torch.finfo(products.dtype).min)
            weights = products.softmax(dim=-1).masked_fill(~allowed, 0.0)
        else:
            weights = products.softmax(dim=-1)
        weights = weights.reshape(batch, groups, heads // groups * length, keys)
        out = torch.matmul(weights, v).reshape(batch, heads, length, -1)
        return layer.o_proj(out.transpose(1, 2).flatten(2))
