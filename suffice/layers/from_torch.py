"""The exact layer of an `nn.MultiheadAttention`."""

from __future__ import annotations

import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.layers.attention import Attention
from suffice.patterns import Full, Pattern
from suffice.spec import AttentionSpec


def from_torch(mha: nn.MultiheadAttention, *, pattern: Pattern = Full()) -> Attention:  # noqa: B008
    """Return the Standard layer that computes what an `nn.MultiheadAttention` computes.

    The weights are copied. The layer is batch first whatever `mha` was, its masks are True =
    attend (`suffice.masks.from_torch_mha` turns torch's), and causality is its pattern, not a
    mask: give pattern=Causal() for a layer that was called with a causal mask. Dropout and
    train/eval are taken over.

    Args:
        mha: the module; kdim and vdim equal, no bias_k/bias_v, no add_zero_attn.
        pattern: the pattern of the layer.

    Raises:
        ConfigError: naming what the module has that no Standard layer has.
    """
    if type(mha) is not nn.MultiheadAttention:
        raise ConfigError(
            f"from_torch takes an nn.MultiheadAttention, got {type(mha).__name__}; {_instead(mha)}."
        )
    strange = []
    if mha.bias_k is not None or mha.bias_v is not None:
        strange.append("add_bias_kv=True")
    if mha.add_zero_attn:
        strange.append("add_zero_attn=True")
    if mha.kdim != mha.vdim:
        strange.append(f"kdim={mha.kdim} beside vdim={mha.vdim}")
    if strange:
        raise ConfigError(
            f"this nn.MultiheadAttention has {' and '.join(strange)}, which no Standard layer "
            "expresses; build it without."
        )
    weight = mha.out_proj.weight
    spec = AttentionSpec(
        d_model=mha.embed_dim,
        num_heads=mha.num_heads,
        d_source=None if mha.kdim == mha.embed_dim else mha.kdim,
        pattern=pattern,
        bias=mha.in_proj_bias is not None,
        dropout=mha.dropout,
    )
    layer = Attention(spec, device=weight.device, dtype=weight.dtype)
    packed = mha.in_proj_weight
    parts = (
        (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
        if packed is None
        else packed.chunk(3)
    )
    with torch.no_grad():
        for name, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
            getattr(layer, name).weight.copy_(part)
        layer.o_proj.weight.copy_(weight)
        if mha.in_proj_bias is not None:
            for name, part in zip(
                ("q_proj", "k_proj", "v_proj"), mha.in_proj_bias.chunk(3), strict=True
            ):
                getattr(layer, name).bias.copy_(part)
            layer.o_proj.bias.copy_(mha.out_proj.bias)
    if not any(p.requires_grad for p in mha.parameters()):
        layer.requires_grad_(False)
    return layer.train(mha.training)


def _instead(given: object) -> str:
    """Return what to do with another module."""
    if isinstance(given, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        return (
            "suffice.convert.sources.from_encoder takes an nn.TransformerEncoder, and one layer as "
            "nn.TransformerEncoder(layer, 1)"
        )
    return "a subclass may compute something else, so copy its weights yourself"
