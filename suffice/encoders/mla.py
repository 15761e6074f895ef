"""Multi-head latent attention with decoupled rotary keys.

Letters: B batch, H heads, T queries, S keys, N head_dim, R rank, P rotary width, E value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from suffice.encoders.base import KEYS, QUERIES, Encoder, Factory, LinearMap
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.positions import Position
    from suffice.utils.protocols import LayerLike, SpecLike

EPS = 1e-6  # of the norms of the latents, as in DeepSeek's models


@dataclass(frozen=True)
class MLA(Encoder):
    """K_h = [c W_UK_h; rope(x W_KR)], V_h = c W_UV_h, Q_h = [c' W_UQ_h; rope(c' W_QR_h)].

    c = norm(x W_DKV) of width R is the latent of keys and values, c' = norm(x W_DQ) that of the
    queries (x itself without `query_rank`), and norm is an RMS norm. The rotary key, P wide, is
    shared by all heads. Cached are c and the rotary key, R + P numbers a token whatever the number
    of heads; a call that continues a cache reads it as it is, with W_UK absorbed into the queries
    and W_UV into the outputs.

    Choose it where the KV cache limits a model with many heads. The spec's head_dim is N,
    the width of a key without its rotary part, so D = N + P; num_kv_heads stays open.

    Args:
        rank: R, >= 1.
        rotary_dim: P, >= 1; even where positions rotate it.
        value_dim: E; None: head_dim.
        query_rank: width of the queries' latent; None: queries are one map of x.

    Raises:
        ConfigError: for sizes below 1.

    Cost: d (R + P) + R H (N + E) + d H (N + P) parameters without biases, norms, the output map
        and a query rank; R + P cached numbers a token.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 and appendix C. No difference.
    """

    rank: int
    rotary_dim: int
    value_dim: int | None = None
    query_rank: int | None = None

    learns_values = False
    mixes_values = False
    products_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (self.rank, self.rotary_dim, self.value_dim or 1, self.query_rank or 1)
        if min(sizes) < 1 or 0 in (self.value_dim, self.query_rank):
            raise ConfigError(f"{self!r}: widths are whole numbers, at least 1.")

    def conflicts(self, spec: SpecLike) -> list[str]:
        """Values exist only behind the cache, and heads share the latent already."""
        refused = {
            "num_kv_heads": spec.num_kv_heads not in (None, spec.num_heads),
            "norm": spec.norm.norms,
            **{name: name in spec.beyond_pairs for name in ("mixing", "kernel", "past")},
            "combine": spec.combine.maps > 1,
        }
        names = [f"{name}={getattr(spec, name)!r}" for name, broken in refused.items() if broken]
        if not names:
            return []
        return [
            f"{self!r} makes every head's keys and values from one latent, and cannot have "
            f"{', '.join(names)}; leave {'it' if len(names) == 1 else 'them'} out."
        ]

    def _content_width(self, spec: SpecLike) -> int:
        return spec.head_dim or spec.d_model // spec.num_heads

    def key_width(self, spec: SpecLike) -> int:
        """Return N + P."""
        return self._content_width(spec) + self.rotary_dim

    def value_width(self, spec: SpecLike) -> int:
        """Return E."""
        return self.value_dim or self._content_width(spec)

    def rotary_width(self, spec: SpecLike) -> int:  # noqa: ARG002
        """Return P."""
        return self.rotary_dim

    def cached_widths(self, spec: SpecLike) -> tuple[tuple[int, int], ...]:  # noqa: ARG002
        """Return the latent and the rotary key, side by side in one tensor."""
        return ((1, self.rank + self.rotary_dim),)

    def maps(self, spec: SpecLike) -> dict[str, LinearMap]:
        """Return the maps down to the latents and up from them."""
        d_source = spec.d_source or spec.d_model
        content, value = self._content_width(spec), self.value_width(spec)
        q = spec.num_heads * (content + self.rotary_dim)
        if self.query_rank is None:
            maps = {"q_proj": LinearMap(spec.d_model, q, QUERIES)}
        else:
            maps = {
                "q_a_proj": LinearMap(spec.d_model, self.query_rank, QUERIES),
                "q_b_proj": LinearMap(self.query_rank, q, QUERIES),
            }
        return maps | {
            "kv_a_proj": LinearMap(d_source, self.rank + self.rotary_dim, KEYS),
            "kv_b_proj": LinearMap(self.rank, spec.num_heads * (content + value), KEYS),
        }

    def parameters(self, spec: SpecLike) -> int:
        """Count the maps and the gains of the norms; kv_b_proj has no bias."""
        up = spec.num_heads * (self._content_width(spec) + self.value_width(spec))
        gains = self.rank + (self.query_rank or 0)
        return super().parameters(spec) - up * spec.bias + gains

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the maps and norms; kv_b_proj has no bias, so that it can be absorbed."""
        modules = {
            name: factory.map(m.inputs, m.outputs, bias=spec.bias and name != "kv_b_proj")
            for name, m in self.maps(spec).items()
        }
        modules["kv_a_norm"] = factory.norm(self.rank, EPS)
        if self.query_rank is not None:
            modules["q_a_norm"] = factory.norm(self.query_rank, EPS)
        return modules

    def queries(self, layer: LayerLike, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, N + P]."""
        if self.query_rank is None:
            q = layer.q_proj(x)
        else:
            q = layer.q_b_proj(layer.q_a_norm(layer.q_a_proj(x)))
        return q.unflatten(2, (layer.spec.num_heads, -1)).transpose(1, 2)

    def cached(self, layer: LayerLike, source: Tensor) -> tuple[Tensor, ...]:
        """Return the latent, normalised, and the rotary key: [B, 1, S, R + P]."""
        latent, key = layer.kv_a_proj(source).split((self.rank, self.rotary_dim), dim=-1)
        return (torch.cat([layer.kv_a_norm(latent), key], dim=-1)[:, None],)

    def rotate(
        self,
        layer: LayerLike,
        position: Position,
        q: Tensor,
        cached: tuple[Tensor, ...],
        cos_sin: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rotate the trailing P features."""
        content = q.shape[-1] - self.rotary_dim
        q_content, q_rotary = q.split((content, self.rotary_dim), dim=-1)
        latent, k_rotary = cached[0].split((self.rank, self.rotary_dim), dim=-1)
        q_rotary, (k_rotary,) = super().rotate(layer, position, q_rotary, (k_rotary,), cos_sin)
        q = torch.cat([q_content, q_rotary], dim=-1)
        return q, (torch.cat([latent, k_rotary], dim=-1),)

    def expand(self, layer: LayerLike, cached: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return keys [B, H, S, N + P] and values [B, H, S, E]."""
        spec, content = layer.spec, self._content_width(layer.spec)
        latent, k_rotary = cached[0].split((self.rank, self.rotary_dim), dim=-1)
        up = layer.kv_b_proj(latent[:, 0]).unflatten(2, (spec.num_heads, -1)).transpose(1, 2)
        k_content, v = up.split((content, up.shape[-1] - content), dim=-1)
        k_rotary = k_rotary.expand(-1, spec.num_heads, -1, -1)
        return torch.cat([k_content, k_rotary], dim=-1), v

    def absorb(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return queries [B, H, T, R + P], the cache as one key head, the latent as its values.

        None where the map of keys and values is quantised or adapted, and has no plain weight.
        """
        if not isinstance(layer.kv_b_proj, nn.Linear):
            return None
        content = self._content_width(layer.spec)
        w_uk, _ = self._absorbed_maps(layer)
        q_content, q_rotary = q.split((content, self.rotary_dim), dim=-1)
        q = torch.cat([torch.matmul(q_content, w_uk.to(q.dtype)), q_rotary], dim=-1)
        return q, cached[0], cached[0][..., : self.rank]

    def restore(self, layer: LayerLike, out: Tensor) -> Tensor:
        """Return the outputs [B, H, T, E] of latents [B, H, T, R]."""
        _, w_uv = self._absorbed_maps(layer)
        return torch.matmul(out, w_uv.to(out.dtype).transpose(1, 2))

    def _absorbed_maps(self, layer: LayerLike) -> tuple[Tensor, Tensor]:
        """Return W_UK [H, N, R] and W_UV [H, E, R]."""
        content = self._content_width(layer.spec)
        weight = layer.kv_b_proj.weight.unflatten(0, (layer.spec.num_heads, -1))
        return weight.split((content, weight.shape[1] - content), dim=1)

    @classmethod
    def samples(cls) -> tuple[Encoder, ...]:
        """Return small instances, with and without a latent of the queries."""
        return cls(rank=6, rotary_dim=4), cls(rank=5, rotary_dim=2, value_dim=3, query_rank=7)
