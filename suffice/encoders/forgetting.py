"""Softmax attention whose logits fade by forget gates of the tokens between query and key.

Letters: B batch, H query heads, G key/value heads, S keys, D head width, E value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.encoders.base import KEYS, QUERIES, Encoder, Factory, LinearMap
from suffice.utils.torch_compat import readable

if TYPE_CHECKING:
    from suffice.memory import Memory
    from suffice.utils.protocols import LayerLike, SpecLike

PARTS = 3  # features that hold a sum of gates: together they have 24 bits in bfloat16
UNIT = 256.0  # factor of those features, or long sums would overflow in float16
# How much the queries of a run may forget: products are float32, and steps of 256 are 2^-15 there.
# Runs of fewer queries cost more than they give: what forgets so fast hardly sees its neighbours.
MOST_FORGOTTEN = {torch.float32: 256.0, torch.float16: 2048.0, torch.bfloat16: 2048.0}
SHORTEST_RUN = 32


@dataclass(frozen=True)
class Forgetting(Encoder):
    """O_t = softmax_s(q_t . k_s / sqrt(D) + log f_(s+1) + ... + log f_t) V, f = sigmoid(x W_F + b).

    Each token has a forget gate for every key/value head, and a query sees a key the less, the more
    the tokens after it forget. Choose it for causal language models in place of rotary positions:
    gates tell near from far by what stands between, and are learned from the text. Not where a
    cache of few bits or with sinks must do: the gates of all keys have to be kept.

    The sum is that of the query minus that of the key. Three more features of each hold it, three
    its factor: every op, mask, sink, kernel of plain products and KV cache serves it as it is. A
    cap, which would bound the sum, is refused. Sums begin at the first query of a call, on a CPU at
    that of a run of queries that forget little, so that long texts lose no digits; elsewhere (GPU,
    compiled graph, `torch.func`) scores beside a sum of 24,000 are right to 2e-3. Cached are keys,
    log f and values.

    Cost: more than Standard: d G + G parameters, 2 T d G FLOPs and 12 a pair and head, and G cached
        numbers a token.
    Source: Lin et al. 2025, arXiv:2503.02130, equations 3 to 5. Differs: grouped heads share the
    gates of their keys.
    """

    mixes_values = False
    sums_tokens = True

    def conflicts(self, spec: SpecLike) -> list[str]:
        """Gates are summed towards later tokens, of each key by itself."""
        refused = dict(spec.beyond_pairs)
        if spec.combine.maps > 1:
            refused["combine"] = spec.combine
        if not spec.kernel.plain_scores:
            refused["kernel"] = spec.kernel
        if spec.scale == 0:
            refused["scale"] = spec.scale
        band = spec.pattern.band()
        if not spec.pattern.causal or band is None or band.before is not None:
            refused["pattern"] = spec.pattern
        names = [f"{name}={value!r}" for name, value in refused.items()]
        if not names:
            return []
        return [
            f"{self!r} sums the gates of the tokens between a key and a later query, and cannot "
            f"have {', '.join(names)}; use Softmax() over Causal()."
        ]

    def _width(self, spec: SpecLike) -> int:
        return spec.head_dim or spec.d_model // spec.num_heads

    def key_width(self, spec: SpecLike) -> int:
        """Return D, and the features of the gates."""
        return self._width(spec) + 2 * PARTS

    def value_width(self, spec: SpecLike) -> int:
        """Return E."""
        return self._width(spec)

    def rotary_width(self, spec: SpecLike) -> int:
        """Return D."""
        return self._width(spec)

    def scaled_width(self, spec: SpecLike) -> int:
        """Return D."""
        return self._width(spec)

    def cached_widths(self, spec: SpecLike) -> tuple[tuple[int, int], ...]:
        """Return keys, the logarithms of gates, and values."""
        return tuple((spec.kv_heads, width) for width in (self._width(spec), 1, self._width(spec)))

    def maps(self, spec: SpecLike) -> dict[str, LinearMap]:
        """Return the maps of queries, keys, values and gates."""
        source, width = spec.d_source or spec.d_model, self._width(spec)
        return {
            "q_proj": LinearMap(spec.d_model, spec.num_heads * width, QUERIES),
            "k_proj": LinearMap(source, spec.kv_heads * width, KEYS),
            "v_proj": LinearMap(source, spec.kv_heads * width, KEYS),
            "f_proj": LinearMap(source, spec.kv_heads, KEYS),
        }

    def parameters(self, spec: SpecLike) -> int:
        """Count the maps and the norms of queries and keys."""
        heads = (spec.num_heads, spec.kv_heads)
        gains = sum(spec.norm.parameters(count, self._width(spec)) for count in heads)
        return super().parameters(spec) + gains

    def build(self, spec: SpecLike, factory: Factory) -> dict[str, nn.Module]:
        """Return the maps and norms."""
        width = self._width(spec)
        modules = {
            name: factory.map(linear.inputs, linear.outputs, bias=spec.bias)
            for name, linear in self.maps(spec).items()
        }
        modules["q_norm"] = spec.norm.build(spec.num_heads, width, factory)
        modules["k_norm"] = spec.norm.build(spec.kv_heads, width, factory)
        return modules | {"v_norm": spec.norm.build_values()}

    def queries(self, layer: LayerLike, x: Tensor) -> Tensor:
        """Return the queries [B, H, T, D]."""
        q_BTHD = layer.q_proj(x).unflatten(-1, (layer.spec.num_heads, -1))
        return layer.q_norm(q_BTHD).transpose(1, 2)

    def cached(self, layer: LayerLike, source: Tensor) -> tuple[Tensor, ...]:
        """Return keys [B, G, S, D], logarithms of gates [B, G, S, 1] and values [B, G, S, E]."""
        groups = layer.spec.kv_heads
        k_BSGD = layer.k_norm(layer.k_proj(source).unflatten(-1, (groups, -1)))
        v_BSGE = layer.v_norm(layer.v_proj(source).unflatten(-1, (groups, -1)))
        gates = layer.f_proj(source)
        exact = torch.promote_types(gates.dtype, torch.float32)
        log_f = F.logsigmoid(gates.to(exact)).to(gates.dtype)[..., None]
        return tuple(x.transpose(1, 2) for x in (k_BSGD, log_f, v_BSGE))

    def at_padding(self, cached: tuple[Tensor, ...], valid: Tensor) -> tuple[Tensor, ...]:
        """Return the cached tensors with gates of 1 at padding, which forgets nothing."""
        k, log_f, v = cached
        return k, log_f.masked_fill(~valid[:, None, :, None], 0.0), v

    def runs(self, length: int, cached: tuple[Tensor, ...]) -> list[int]:
        """Return the lengths of runs of queries that each forget little."""
        log_f = cached[1].detach()
        most = MOST_FORGOTTEN.get(log_f.dtype)
        if most is None or not readable(log_f) or length * log_f.numel() == 0:
            return [length]
        sums = -log_f[:, :, -length:, 0].flatten(0, 1).double().cumsum(dim=-1)
        starts = [0]
        while starts[-1] < length:
            first = starts[-1]
            near = torch.searchsorted(sums, sums[:, first, None] + most, right=True)
            starts.append(min(max(int(near.min()), first + SHORTEST_RUN), length))
        return [end - first for first, end in pairwise(starts)]

    def products(
        self, layer: LayerLike, q: Tensor, cached: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, D + 6] and keys [B, G, S, D + 6] with sums of gates, and values.

        A score is scale (q . k + c_t - c_s), with c_t the sum up to t over the scale.
        """
        k, log_f, v = cached
        first = k.shape[2] - q.shape[2]
        sums = log_f.double().cumsum(dim=2)
        rest = (sums - sums[:, :, first : first + 1]) / (layer.spec.score_scale * UNIT)
        parts = []
        for _ in range(PARTS):
            most = torch.finfo(k.dtype).max
            parts.append(rest.clamp(-most, most).to(k.dtype))
            rest = rest - parts[-1].double()
        c = torch.cat(parts, dim=-1)
        of_queries = c[:, :, first:].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        units = (torch.full_like(x, UNIT) for x in (of_queries, c))
        q = torch.cat([q, of_queries, next(units)], dim=-1)
        return q, torch.cat([k, next(units), -c], dim=-1), v

    def refuses_memory(self, memory: Memory) -> str | None:
        """Refuse a cache with a gap behind its sinks, or of rounded gates."""
        if memory.sinks or memory.lossy:
            return "needs the gates of all keys between, as they are: use Dynamic() or Rolling(n)"
        return None
