"""Hugging Face's LongformerSelfAttention, and the same layer of the same weights made of ours.

Both sides compute all six maps (queries, keys and values; a second set for the queries that see
everything) and no output map, so they are the same function of x. Their window of W shows W / 2
positions to either side and the query: Window(W / 2 + 1). x is [B, T, d_model].
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.contest import Side, timed
from benchmarks.exact import Heads, check, rows_of
from benchmarks.peers.installed import package
from suffice.ops import AttentionCall
from suffice.patterns import Full, Global, Pattern, Window

MAPS = ("query", "key", "value")


def pattern(window: int, tokens: int) -> Pattern:
    """Return the pattern of the port."""
    return Window(window // 2 + 1) | Global(tokens)


class Port:
    """The port with random weights, and its function written with another attention.

    Raises:
        Absent: if transformers is not installed.
    """

    def __init__(self, length: int, heads: int, width: int, *, window: int, tokens: int) -> None:
        port = package("transformers", "transformers.models.longformer.modeling_longformer")
        config = port.LongformerConfig(
            hidden_size=heads * width,
            num_attention_heads=heads,
            attention_window=[window],
            attention_probs_dropout_prob=0.0,
        )
        torch.manual_seed(0)
        self.module: nn.Module = port.LongformerSelfAttention(config, layer_id=0)
        self.heads, self.tokens = heads, tokens
        self.is_global = (torch.arange(length) < tokens)[None]

    def theirs(self, x: Tensor) -> Tensor:
        """Return the port's output."""
        return self.module(
            x,
            attention_mask=1e4 * self.is_global,
            is_index_masked=torch.zeros_like(self.is_global),
            is_index_global_attn=self.is_global,
            is_global_attn=True,
        )[0]

    def ours(self, x: Tensor, *, attention: Heads, everything: Heads) -> Tensor:
        """Return the same of `attention` over the pattern and of `everything` over all keys."""
        q, k, v = (self._map(name, x) for name in MAPS)
        local = attention(q, k, v)[:, :, self.tokens :]
        q = self._map("query_global", x[:, : self.tokens])
        k, v = (self._map(f"{name}_global", x) for name in MAPS[1:])
        return torch.cat([everything(q, k, v), local], dim=2).transpose(1, 2).flatten(2)

    def exact(self, x: Tensor, rows: Tensor, *, problem: AttentionCall) -> Tensor:
        """Return rows of the output, specified; x in float64."""
        first, rest = rows[rows < self.tokens], rows[rows >= self.tokens]
        q, k, v = (self._map(name, x) for name in MAPS)
        local = rows_of(q, k, v, rest, problem)
        q, k, v = (self._map(f"{name}_global", x) for name in MAPS)
        whole = AttentionCall(**{**vars(problem), "pattern": Full()})
        return torch.cat([rows_of(q, k, v, first, whole), local], 2).transpose(1, 2).flatten(2)

    def _map(self, name: str, x: Tensor) -> Tensor:
        """Return [B, H, T, D] of x [B, T, d_model] through one of the port's maps."""
        layer = self.module.get_submodule(name)
        weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
        y = nn.functional.linear(x, weight, bias)
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def side(self, x: Tensor, problem: AttentionCall, *, backward: bool) -> Side:
        """Return the port as a side."""
        return self._side("transformers Longformer", self.theirs, x, problem, backward)

    def our_side(
        self, name: str, attention: Heads, everything: Heads, x: Tensor, problem: AttentionCall, *,
        backward: bool,
    ) -> Side:  # fmt: skip
        """Return ours as a side."""
        compute = partial(self.ours, attention=attention, everything=everything)
        return self._side(name, compute, x, problem, backward)

    def _side(self, name, compute, x: Tensor, problem: AttentionCall, backward: bool) -> Side:
        exact = partial(self.exact, problem=problem)
        return Side(
            name=name,
            call=timed(compute, [x], backward=backward, module=self.module),
            check=partial(check, compute, exact, [x], backward=backward, n=x.shape[1]),
        )
