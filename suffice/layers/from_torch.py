"""Converts an `nn.MultiheadAttention` to an exact `Attention` layer."""

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
        advice = "a subclass may compute something else, so copy its weights yourself"
        if isinstance(mha, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
            advice = (
                "suffice.convert.sources.from_encoder takes an nn.TransformerEncoder, and one "
                "layer as nn.TransformerEncoder(layer, 1)"
            )
        raise ConfigError(
            f"from_torch takes an nn.MultiheadAttention, got {type(mha).__name__}; {advice}."
        )
    options = {
        "add_bias_kv=True": mha.bias_k is not None or mha.bias_v is not None,
        "add_zero_attn=True": mha.add_zero_attn,
        f"kdim={mha.kdim} with vdim={mha.vdim}": mha.kdim != mha.vdim,
    }
    if unsupported := [option for option, present in options.items() if present]:
        raise ConfigError(
            f"this nn.MultiheadAttention has {' and '.join(unsupported)}, which no Standard layer "
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
    weights = (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
    if mha.in_proj_weight is not None:
        weights = mha.in_proj_weight.chunk(3)
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    with torch.no_grad():
        for linear, part in zip(maps, (*weights, weight), strict=True):
            linear.weight.copy_(part)
        if mha.in_proj_bias is not None:
            biases = (*mha.in_proj_bias.chunk(3), mha.out_proj.bias)
            for linear, part in zip(maps, biases, strict=True):
                linear.bias.copy_(part)
    if not any(p.requires_grad for p in mha.parameters()):
        layer.requires_grad_(False)
    return layer.train(mha.training)
