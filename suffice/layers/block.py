"""A Transformer block: attention and a feed-forward map, each with a residual and a norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import unknown
from suffice.layers.attention import Attention
from suffice.layers.cross_attention import EncodedSource
from suffice.layers.dropout import Dropout
from suffice.layers.normalisation import normalisation as normaliser
from suffice.spec import AttentionSpec

NORMS = ("pre", "post")


class Block(nn.Module):
    """Self-attention of any spec, then an MLP.

    Args:
        spec: the attention.
        mlp: the feed-forward map, d_model in and out.
        norm: "pre": x + f(norm(x)), as ViT and GPT; "post": norm(x + f(x)), as the first
            Transformer and the paper's text models.
        eps: of the norms.
        dropout: probability, after the attention.
        normalisation: "layer" or "rms", see `RMSNorm`.
        bias: whether layer norms have one; an RMS norm never has.
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown norm or normalisation.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        mlp: nn.Module,
        *,
        norm: str = "pre",
        eps: float = 1e-6,
        dropout: float = 0.0,
        normalisation: str = "layer",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise unknown("norm", norm, NORMS)
        sizes = {"eps": eps, "bias": bias, "device": device, "dtype": dtype}
        self.attention_norm = normaliser(normalisation, spec.d_model, **sizes)
        self.attention = Attention(spec, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.mlp_norm = normaliser(normalisation, spec.d_model, **sizes)
        self.mlp = mlp
        self.norm = norm

    def forward(self, x: Tensor, **where: Tensor | None) -> Tensor:
        """Return the block's output.

        Args:
            x: features.
            **where: of the attention's call: `valid` [B, T] marks real tokens, `segments` [B, T]
                numbers documents; see `Attention`. What a padded token holds is never read.
        """
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), **where))
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.dropout(self.attention(x, **where)))
        return self.mlp_norm(x + self.mlp(x))


class CrossBlock(nn.Module):
    """Self-attention, attention to a source, then an MLP; each with a residual and a norm.

    Args:
        spec: the self-attention.
        cross_spec: the attention to the source.
        mlp: the feed-forward map, d_model in and out.
        norm: "pre" or "post", see `Block`.
        eps: of the norms.
        dropout: probability, after each attention.
        normalisation: "layer" or "rms", see `RMSNorm`.
        bias: whether layer norms have one; an RMS norm never has.
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        x: [B, T, d_model]; source: [B, S, d_source] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown norm or normalisation.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        cross_spec: AttentionSpec,
        mlp: nn.Module,
        *,
        norm: str = "post",
        eps: float = 1e-6,
        dropout: float = 0.0,
        normalisation: str = "layer",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise unknown("norm", norm, NORMS)
        sizes = {"eps": eps, "bias": bias, "device": device, "dtype": dtype}
        self.attention_norm = normaliser(normalisation, spec.d_model, **sizes)
        self.attention = Attention(spec, device=device, dtype=dtype)
        self.cross_norm = normaliser(normalisation, spec.d_model, **sizes)
        self.cross = Attention(cross_spec, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.mlp_norm = normaliser(normalisation, spec.d_model, **sizes)
        self.mlp = mlp
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        source: Tensor | EncodedSource,
        *,
        source_valid: Tensor | None = None,
        **where: Any,
    ) -> Tensor:
        """Return the block's output.

        Args:
            x: features of the decoder.
            source: features of the encoder, or what `EncodedSource.of` made of them for this block.
            source_valid: bool [B, S], True = a real position of the source; others are not read. A
                `EncodedSource` knows it.
            **where: of the self-attention's call, such as `valid` [B, T]; see `Attention`.
        """
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), **where))
            x = x + self.dropout(self._crossed(self.cross_norm(x), source, source_valid))
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.dropout(self.attention(x, **where)))
        x = self.cross_norm(x + self.dropout(self._crossed(x, source, source_valid)))
        return self.mlp_norm(x + self.mlp(x))

    def _crossed(self, x: Tensor, source: Tensor | EncodedSource, valid: Tensor | None) -> Tensor:
        if isinstance(source, EncodedSource):
            return source.attend(self.cross, x)
        return self.cross(x, source, valid=valid)
