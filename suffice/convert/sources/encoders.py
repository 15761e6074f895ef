"""BERT with a head that classifies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.convert.sources.family import Family, Given, Part, linear, norm
from suffice.convert.sources.gpt2 import ACTIVATIONS
from suffice.errors import ConfigError
from suffice.layers import MLP, Block
from suffice.layers.from_torch import from_torch
from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.models.vit import ViT, ViTConfig
from suffice.spec import AttentionSpec


def classes_of(given: Given) -> int:
    """Return how many classes a configuration names; two where it names none."""
    named = given.entries.get("id2label")
    return len(named) if isinstance(named, dict) and named else given.size("num_labels", 2)


def _build(given: Given) -> Classifier:
    for name, legal in (("is_decoder", False), ("add_cross_attention", False)):
        given.only(name, legal)
    given.only("position_embedding_type", "absolute")
    width, heads = given.size("hidden_size"), given.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{given.where}: num_attention_heads={heads} does not divide hidden_size={width}."
        )
    config = ClassifierConfig(
        vocabulary_size=given.size("vocab_size"),
        length=given.size("max_position_embeddings"),
        num_classes=classes_of(given),
        d_model=width,
        depth=given.depth("num_hidden_layers"),
        mlp_width=given.size("intermediate_size"),
        head_widths=(width,),
        eps=given.number("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[given.only("hidden_act", "gelu", *ACTIVATIONS)],
        embedding_norm=True,
        pooling="first",
        head_activation="tanh",
    )
    return config.build(AttentionSpec(d_model=width, num_heads=heads))


def _parts(model: nn.Module, given: Given) -> list[Part]:
    table = "bert.embeddings.token_type_embeddings.weight"
    types = given.size("type_vocab_size", 2)
    places = "bert.embeddings.position_embeddings.weight"
    parts = [
        Part(theirs="bert.embeddings.word_embeddings.weight", ours=("tokens.weight",)),
        Part(theirs=places, ours=("positions.weight",), plus=table, plus_rows=types),
        *norm("bert.embeddings.LayerNorm", "embedding_norm", bias=True),
        *linear("bert.pooler.dense", "head.0"),
        *linear("classifier", "head.3"),
    ]
    for number in range(len(model.blocks)):
        t, o = f"bert.encoder.layer.{number}", f"blocks.{number}"
        for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v")):
            parts += linear(f"{t}.attention.self.{theirs}", f"{o}.attention.{ours}_proj")
        parts += linear(f"{t}.attention.output.dense", f"{o}.attention.o_proj")
        parts += norm(f"{t}.attention.output.LayerNorm", f"{o}.attention_norm", bias=True)
        parts += linear(f"{t}.intermediate.dense", f"{o}.mlp.up")
        parts += linear(f"{t}.output.dense", f"{o}.mlp.down")
        parts += norm(f"{t}.output.LayerNorm", f"{o}.mlp_norm", bias=True)
    return parts


BERT = Family(
    model_type="bert",
    architecture="BertForSequenceClassification",
    build=_build,
    parts=_parts,
    prefix="",
    derived=("embeddings.position_ids",),
)


def _build_vit(given: Given) -> ViT:
    given.only("hidden_act", "gelu")
    width, heads = given.size("hidden_size"), given.size("num_attention_heads")
    if width % heads:
        raise ConfigError(
            f"{given.where}: num_attention_heads={heads} does not divide hidden_size={width}."
        )
    config = ViTConfig(
        image_size=given.size("image_size", 224),
        patch_size=given.size("patch_size", 16),
        num_classes=classes_of(given),
        d_model=width,
        depth=given.depth("num_hidden_layers"),
        mlp_width=given.size("intermediate_size"),
        channels=given.size("num_channels", 3),
        pooling="class_token",
        eps=given.number("layer_norm_eps", 1e-12),
    )
    return config.build(AttentionSpec(d_model=width, num_heads=heads))


def _parts_vit(model: nn.Module, given: Given) -> list[Part]:
    config = model.config
    patch = (config.d_model, config.channels, config.patch_size, config.patch_size)
    t = "vit.embeddings"
    places = (1, config.length, config.d_model)
    parts = [
        Part(theirs=f"{t}.cls_token", ours=("class_token",), shape=(1, 1, config.d_model)),
        Part(theirs=f"{t}.position_embeddings", ours=("positions",), shape=places),
        Part(
            theirs=f"{t}.patch_embeddings.projection.weight", ours=("patches.weight",), shape=patch
        ),
        Part(theirs=f"{t}.patch_embeddings.projection.bias", ours=("patches.bias",)),
        *norm("vit.layernorm", "norm", bias=True),
        *linear("classifier", "head.0"),
    ]
    biased = given.flag("qkv_bias", default=True)
    for number in range(len(model.blocks)):
        t, o = f"vit.encoder.layer.{number}", f"blocks.{number}"
        for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v")):
            name = f"{t}.attention.attention.{theirs}"
            parts += linear(name, f"{o}.attention.{ours}_proj", bias=biased)
        parts += linear(f"{t}.attention.output.dense", f"{o}.attention.o_proj")
        parts += linear(f"{t}.intermediate.dense", f"{o}.mlp.up")
        parts += linear(f"{t}.output.dense", f"{o}.mlp.down")
        parts += norm(f"{t}.layernorm_before", f"{o}.attention_norm", bias=True)
        parts += norm(f"{t}.layernorm_after", f"{o}.mlp_norm", bias=True)
    return parts


VIT = Family(
    model_type="vit",
    architecture="ViTForImageClassification",
    build=_build_vit,
    parts=_parts_vit,
    prefix="",
)


TORCH_ACTIVATIONS = {torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu"}


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
    known = (
        TORCH_ACTIVATIONS.get(given)
        if callable(given) and not isinstance(given, nn.Module)
        else None
    )
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
