"""`nn.TransformerEncoder` as blocks of this library."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers import MLP, Block
from suffice.layers.from_torch import from_torch

ACTIVATIONS = {torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu"}


class Encoder(nn.Module):
    """Blocks, and a norm behind them where there is one.

    Args:
        blocks: in their order.
        norm: behind the last; None = none.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]
    """

    def __init__(self, blocks: list[Block], norm: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the features; valid [B, T], True = a real position."""
        for block in self.blocks:
            x = block(x, valid=valid)
        return x if self.norm is None else self.norm(x)


@torch.no_grad()
def from_encoder(encoder: nn.TransformerEncoder) -> Encoder:
    """Return the encoder that computes what an `nn.TransformerEncoder` computes.

    The weights are copied. It is batch first whatever theirs was, and `valid` is True where their
    src_key_padding_mask is False.

    Args:
        encoder: of `nn.TransformerEncoderLayer`s.

    Raises:
        ConfigError: naming what it has that no block here has.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> theirs = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
        >>> x = torch.randn(3, 5, 8)
        >>> bool((from_encoder(theirs)(x) - theirs(x)).abs().max() < 1e-5)
        True
    """
    if type(encoder) is not nn.TransformerEncoder:
        raise ConfigError(
            f"from_encoder takes an nn.TransformerEncoder, got {type(encoder).__name__}; a "
            "subclass may compute something else."
        )
    norm = encoder.norm
    if norm is not None and type(norm) is not nn.LayerNorm:
        raise ConfigError(f"the encoder ends in a {type(norm).__name__}; give an nn.LayerNorm.")
    blocks = [_block(layer) for layer in encoder.layers]
    made = Encoder(blocks, None if norm is None else _norm(norm))
    return made.train(encoder.training)


def _block(layer: nn.Module) -> Block:
    if type(layer) is not nn.TransformerEncoderLayer:
        raise ConfigError(
            f"the encoder holds a {type(layer).__name__}; give nn.TransformerEncoderLayers."
        )
    activation = _activation(layer.activation)
    drops = {layer.dropout.p, layer.dropout1.p, layer.dropout2.p}
    attention = from_torch(layer.self_attn)
    spec, up = attention.spec, layer.linear1
    if len(drops) > 1:
        raise ConfigError(f"the encoder drops {sorted(drops)} in one layer; give one probability.")
    made = {"dropout": drops.pop(), "device": up.weight.device, "dtype": up.weight.dtype}
    mlp = MLP(
        spec.d_model, up.out_features, activation=activation, bias=up.bias is not None, **made
    )
    mlp.up.load_state_dict(up.state_dict())
    mlp.down.load_state_dict(layer.linear2.state_dict())
    order, norm = "pre" if layer.norm_first else "post", layer.norm1
    block = Block(spec, mlp, norm=order, eps=norm.eps, bias=norm.bias is not None, **made)
    block.attention = attention
    block.attention_norm.load_state_dict(norm.state_dict())
    block.mlp_norm.load_state_dict(layer.norm2.state_dict())
    return block


def _activation(given: object) -> str:
    plain = {nn.ReLU: "relu", nn.GELU: "gelu"}
    known = ACTIVATIONS.get(given) if callable(given) and not isinstance(given, nn.Module) else None
    if known is None and type(given) in plain and getattr(given, "approximate", "none") == "none":
        known = plain[type(given)]
    if known is None:
        raise ConfigError(f"the encoder's activation is {given!r:.80}; relu and gelu are read.")
    return known


def _norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    (width,) = norm.normalized_shape
    place = {"device": norm.weight.device, "dtype": norm.weight.dtype}
    made = nn.LayerNorm(width, norm.eps, bias=norm.bias is not None, **place)
    made.load_state_dict(norm.state_dict())
    return made
