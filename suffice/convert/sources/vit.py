"""The vision Transformer with a head that classifies."""

from __future__ import annotations

from torch import nn

from suffice.convert.sources.bert import classes_of
from suffice.convert.sources.family import Family, linear, norm
from suffice.convert.sources.given import Given
from suffice.convert.sources.parts import Part
from suffice.errors import ConfigError
from suffice.models.vit import ViT, ViTConfig
from suffice.spec import AttentionSpec


def _build(given: Given) -> ViT:
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


def _parts(model: nn.Module, given: Given) -> list[Part]:
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
    build=_build,
    parts=_parts,
    prefix="",
)
