"""A Transformer block: attention and a feed-forward map, each with a residual and a norm."""

from __future__ import annotations

from torch import Tensor, nn

from suffice.errors import unknown
from suffice.layers.attention import Attention
from suffice.layers.dropout import Dropout
from suffice.spec import AttentionSpec

NORMS = ("pre", "post")


class Block(nn.Module):
    """Self-attention of any spec, then an MLP.

    Args:
        spec: the attention.
        mlp: the feed-forward map, d_model in and out.
        norm: "pre": x + f(norm(x)), as ViT and GPT; "post": norm(x + f(x)), as the first
            Transformer and the paper's text models.
        eps: of the layer norms.
        dropout: probability, after the attention.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]

    Raises:
        ConfigError: for an unknown norm.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        mlp: nn.Module,
        *,
        norm: str = "pre",
        eps: float = 1e-6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise unknown("norm", norm, NORMS)
        self.attention_norm = nn.LayerNorm(spec.d_model, eps=eps)
        self.attention = Attention(spec)
        self.dropout = Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(spec.d_model, eps=eps)
        self.mlp = mlp
        self.norm = norm

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """Return the block's output; `valid` [B, T] marks real tokens, padding is never read."""
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), valid=valid))
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.dropout(self.attention(x, valid=valid)))
        return self.mlp_norm(x + self.mlp(x))
