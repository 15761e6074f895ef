"""Encoders: BERT, its relatives and ViT of transformers, and torch's `nn.TransformerEncoder`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.layers import MLP, Block
from suffice.layers.from_torch import from_torch
from suffice.models.architectures.architecture import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    SIZES,
    Architecture,
    ConfigReader,
    Row,
    TensorMapping,
    map_rows,
    read_sizes,
    write_sizes,
)
from suffice.models.architectures.decoders import block_rows
from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.models.vit import ViT, ViTConfig
from suffice.spec import AttentionSpec


def read_num_classes(reader: ConfigReader) -> int:
    """Return num_labels, which older files have with the names of two classes, or their count."""
    labels = reader.entries.get("id2label")
    named = len(labels) if isinstance(labels, dict) and labels else 2
    return reader.size("num_labels", named)


@dataclass(frozen=True, kw_only=True)
class _BertVariant:
    """Names in BERT's checkpoints, and what differs in a relative's."""

    prefix: str = "bert"
    head: tuple[str, str] | None = ("bert.pooler.dense", "classifier")  # None: no head
    head_activation: str = "tanh"
    types: bool = True  # whether tokens have a type, of which the first is read
    skips: bool = False  # whether positions begin behind pad_token_id
    layers: str = "encoder.layer"
    heads: str = "num_attention_heads"  # entries of config.json
    width: str = "hidden_size"
    sizes: tuple[tuple[str, str], ...] = tuple(SIZES.items())
    activation: str = "hidden_act"
    eps: str = "layer_norm_eps"
    default_eps: float = 1e-12
    block: str = (
        "attention.self.query:attention.q_proj attention.self.key:attention.k_proj "
        "attention.self.value:attention.v_proj attention.output.dense:attention.o_proj "
        "attention.output.LayerNorm:attention_norm intermediate.dense:mlp.up "
        "output.dense:mlp.down output.LayerNorm:mlp_norm"
    )
    legal: tuple[tuple[str, object], ...] = (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    )

    def skipped(self, reader: ConfigReader) -> int:
        """Return the rows of the table of positions that no token has."""
        if not self.skips:
            return 0
        pad = reader.entries.get("pad_token_id", 1)
        return reader.size("pad_token_id", 1) + 1 if pad != 0 else 1


def _read_bert(
    reader: ConfigReader, *, variant: _BertVariant
) -> tuple[ClassifierConfig, AttentionSpec]:
    for name, legal in variant.legal:
        reader.one_of(name, legal)
    heads, width = reader.heads(variant.heads, variant.width)
    reader.one_of("embedding_size", width)
    length = reader.size("max_position_embeddings", 512) - variant.skipped(reader)
    if length < 1:
        raise ConfigError(
            f"{reader.where}: max_position_embeddings={length + variant.skipped(reader)} leaves no "
            "position behind pad_token_id."
        )
    config = ClassifierConfig(
        **read_sizes(reader, dict(variant.sizes)),
        length=length,
        num_classes=None if variant.head is None else read_num_classes(reader),
        head_widths=() if variant.head is None else (width,),
        eps=reader.number(variant.eps, variant.default_eps),
        activation=ACTIVATIONS[reader.one_of(variant.activation, "gelu", *ACTIVATIONS)],
        embedding_norm=True,
        pooling="first" if variant.head else reader.one_of("pooling", "mean", "first"),
        head_activation=variant.head_activation,
    )
    return config, AttentionSpec(d_model=width, num_heads=heads)


def _write_encoder(model: Classifier | ViT) -> dict[str, Any]:
    return label_entries(model) | {
        "num_attention_heads": model.blocks[0].attention.spec.num_heads,
        "layer_norm_eps": model.config.eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def label_entries(model: Classifier | ViT) -> dict[str, Any]:
    """Return the entries of a model's classes."""
    names = [str(number) for number in range(model.config.num_classes or 0)]
    return {"id2label": {n: n for n in names}, "label2id": {n: int(n) for n in names}}


def _write_bert(model: Classifier) -> dict[str, Any]:
    return (
        write_sizes(model.config, SIZES)
        | _write_encoder(model)
        | {
            "max_position_embeddings": model.config.length,
            "hidden_act": ACTIVATION_NAMES.get(model.config.activation),
            "type_vocab_size": 2,
            "pad_token_id": None,
        }
    )


def _map_bert(
    model: Classifier, reader: ConfigReader, *, variant: _BertVariant
) -> list[TensorMapping]:
    embeddings = f"{variant.prefix}.embeddings"
    rows: list[Row] = [
        (f"{embeddings}.word_embeddings", "tokens"),
        (f"{embeddings}.position_embeddings", "positions"),
        (f"{embeddings}.LayerNorm", "embedding_norm"),
        *zip(variant.head or (), ("head.0", "head.3"), strict=False),
        *block_rows(f"{variant.prefix}.{variant.layers}.*", "blocks.*", variant.block),
    ]
    types = f"{embeddings}.token_type_embeddings.weight" if variant.types else ""
    table = {
        "skipped": variant.skipped(reader),
        "plus": types,
        "plus_rows": reader.size("type_vocab_size", 2) if types else 0,
    }
    return [
        replace(one, **table) if one.ours[0].startswith("positions") else one
        for one in map_rows(rows, model)
    ]


def _bert(
    model_type: str, name: str, variant: _BertVariant, **others: Any
) -> tuple[Architecture, Architecture]:
    bare = replace(variant, head=None)

    def made(class_name: str, variant: _BertVariant, unread: tuple[str, ...]) -> Architecture:
        return Architecture(
            model_type=model_type,
            class_name=class_name,
            sizes=partial(_read_bert, variant=variant),
            entries=_write_bert if class_name == "BertForSequenceClassification" else None,
            model=Classifier,
            mappings=partial(_map_bert, variant=variant),
            prefix=f"{variant.prefix}.",
            derived=("embeddings.position_ids", "embeddings.token_type_ids", *unread),
            **others,
        )

    pooler = ("pooler.dense.weight", "pooler.dense.bias")
    unread = () if "pooler" in str(variant.head) else pooler  # of a file saved with more heads
    return (
        made(f"{name}ForSequenceClassification", variant, unread),
        made(f"{name}Model", bare, pooler),
    )


BERTS = (
    *_bert("bert", "Bert", _BertVariant()),
    *_bert(
        "roberta",
        "Roberta",
        _BertVariant(
            prefix="roberta", head=("classifier.dense", "classifier.out_proj"), skips=True
        ),
    ),
    *_bert(
        "electra",
        "Electra",
        _BertVariant(
            prefix="electra",
            head=("classifier.dense", "classifier.out_proj"),
            head_activation="gelu",
        ),
    ),
    *_bert(
        "distilbert",
        "DistilBert",
        _BertVariant(
            prefix="distilbert",
            head=("pre_classifier", "classifier"),
            head_activation="relu",
            types=False,
            layers="transformer.layer",
            heads="n_heads",
            width="dim",
            sizes=(
                ("vocab_size", "vocabulary_size"),
                ("dim", "d_model"),
                ("n_layers", "depth"),
                ("hidden_dim", "mlp_width"),
            ),
            activation="activation",
            eps="",
            block=(
                "attention.q_lin:attention.q_proj attention.k_lin:attention.k_proj "
                "attention.v_lin:attention.v_proj attention.out_lin:attention.o_proj "
                "sa_layer_norm:attention_norm ffn.lin1:mlp.up ffn.lin2:mlp.down "
                "output_layer_norm:mlp_norm"
            ),
            legal=(),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class _ViTVariant:
    """What ViT and its relatives differ in."""

    name: str  # before all tensors of the body
    pooling: str = "class_token"
    heads: tuple[tuple[str, float], ...] = (("classifier", 1.0),)  # "" = zero; factors of ours


VIT_SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "channels",
    **{theirs: ours for theirs, ours in SIZES.items() if ours != "vocabulary_size"},
}


def _read_vit(reader: ConfigReader, *, variant: _ViTVariant) -> tuple[ViTConfig, AttentionSpec]:
    reader.one_of("hidden_act", "gelu")
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    config = ViTConfig(
        **read_sizes(reader, VIT_SIZES, image_size=224, patch_size=16, channels=3),
        num_classes=read_num_classes(reader),
        pooling=variant.pooling,
        eps=reader.number("layer_norm_eps", 1e-12),
    )
    return config, AttentionSpec(d_model=width, num_heads=heads)


def _write_vit(model: ViT) -> dict[str, Any]:
    sizes = write_sizes(model.config, VIT_SIZES)
    return sizes | _write_encoder(model) | {"hidden_act": "gelu", "qkv_bias": True}


def _map_vit(model: ViT, reader: ConfigReader, *, variant: _ViTVariant) -> list[TensorMapping]:
    config, body = model.config, variant.name
    width, patch = config.d_model, config.patch_size
    heads = [
        (theirs or "zero", ours)
        for (theirs, _), ours in zip(variant.heads, ("head.0", "distillation_head.0"), strict=False)
    ]
    rows: list[Row] = [
        (f"{body}.embeddings.cls_token", "class_token"),
        (f"{body}.embeddings.distillation_token", "distillation_token"),
        (f"{body}.embeddings.position_embeddings", "positions"),
        (f"{body}.embeddings.patch_embeddings.projection", "patches"),
        (f"{body}.layernorm", "norm"),
        *heads,
        *block_rows(
            f"{body}.encoder.layer.*",
            "blocks.*",
            "attention.attention.query:attention.q_proj attention.attention.key:attention.k_proj "
            "attention.attention.value:attention.v_proj "
            "attention.output.dense:attention.o_proj intermediate.dense:mlp.up "
            "output.dense:mlp.down layernorm_before:attention_norm layernorm_after:mlp_norm",
        ),
    ]
    shapes = {
        "class_token": (1, 1, width),
        "distillation_token": (1, 1, width),
        "positions": (1, config.length, width),
        "patches.weight": (width, config.channels, patch, patch),
    }
    factors = dict(variant.heads)
    bias = reader.flag("qkv_bias", default=True)
    lacking = () if bias else (".q_proj", ".k_proj", ".v_proj")
    return [
        replace(
            one,
            shape=shapes.get(one.ours[0]),
            factor=factors.get(one.theirs.rpartition(".")[0], 1.0),
            theirs="" if one.theirs.startswith("zero.") else one.theirs,
        )
        for one in map_rows(rows, model, without_bias=lacking)
    ]


def _vit(class_name: str, *, written: bool = True, **fields: Any) -> Architecture:
    variant = _ViTVariant(**fields)
    return Architecture(
        model_type=variant.name,
        class_name=class_name,
        sizes=partial(_read_vit, variant=variant),
        entries=_write_vit if written else None,
        model=ViT,
        mappings=partial(_map_vit, variant=variant),
    )


TWO_HEADS = (("cls_classifier", 1.0), ("distillation_classifier", 1.0))
VITS = (
    _vit("ViTForImageClassification", name="vit"),
    _vit(
        "DeiTForImageClassificationWithTeacher", name="deit", pooling="distilled", heads=TWO_HEADS
    ),
    # its one head is the mean of twice itself and of nothing
    _vit(
        "DeiTForImageClassification",
        written=False,
        name="deit",
        pooling="distilled",
        heads=(("classifier", 2.0), ("", 1.0)),
    ),
)


class Encoder(nn.Module):
    """A stack of blocks, with an optional norm after the last.

    Args:
        blocks: blocks in order.
        norm: norm after the last block; None: no norm.

    Shapes:
        x: [B, T, d_model] -> [B, T, d_model]
    """

    def __init__(self, blocks: list[Block], norm: nn.Module | None) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)
        self.norm = norm

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the features; valid [B, T], True = a real position."""
        for block in self.blocks:
            x = block(x, valid=valid)
        return x if self.norm is None else self.norm(x)


@torch.no_grad()
def from_encoder(encoder: nn.TransformerEncoder) -> Encoder:
    """Return an encoder that computes the same as an `nn.TransformerEncoder`.

    The weights are copied. Inputs are batch first whatever theirs were, and `valid` is True where
    their src_key_padding_mask is False.

    Args:
        encoder: an encoder of `nn.TransformerEncoderLayer`s.

    Raises:
        ConfigError: naming a part that no block here has.

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
    if encoder.norm is not None and type(encoder.norm) is not nn.LayerNorm:
        raise ConfigError(
            f"the encoder ends in a {type(encoder.norm).__name__}; give an nn.LayerNorm."
        )
    blocks = [_convert_layer(layer) for layer in encoder.layers]
    return Encoder(blocks, copy.deepcopy(encoder.norm)).train(encoder.training)


def _convert_layer(layer: nn.Module) -> Block:
    if type(layer) is not nn.TransformerEncoderLayer:
        raise ConfigError(
            f"the encoder holds a {type(layer).__name__}; give nn.TransformerEncoderLayers."
        )
    dropouts = {layer.dropout.p, layer.dropout1.p, layer.dropout2.p}
    if len(dropouts) > 1:
        raise ConfigError(
            f"the encoder has dropouts of {sorted(dropouts)} in one layer; give one probability."
        )
    attention, up, norm = from_torch(layer.self_attn), layer.linear1, layer.norm1
    place = {"dropout": dropouts.pop(), "device": up.weight.device, "dtype": up.weight.dtype}
    activation = _activation_name(layer.activation)
    width = attention.spec.d_model
    mlp = MLP(width, up.out_features, activation=activation, bias=up.bias is not None, **place)
    mlp.up.load_state_dict(up.state_dict())
    mlp.down.load_state_dict(layer.linear2.state_dict())
    block = Block(
        attention.spec,
        mlp,
        norm="pre" if layer.norm_first else "post",
        eps=norm.eps,
        bias=norm.bias is not None,
        **place,
    )
    block.attention = attention
    block.attention_norm.load_state_dict(norm.state_dict())
    block.mlp_norm.load_state_dict(layer.norm2.state_dict())
    return block


def _activation_name(activation: object) -> str:
    if activation is F.relu or type(activation) is nn.ReLU:
        return "relu"
    if activation is F.gelu:
        return "gelu"
    if type(activation) is nn.GELU and activation.approximate == "none":
        return "gelu"
    raise ConfigError(f"the encoder's activation is {activation!r:.80}; relu and gelu are read.")
