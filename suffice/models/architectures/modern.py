"""ModernBERT and EuroBERT of transformers, encoders with rotary positions and gated MLPs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from suffice.models.architectures.architecture import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    LENGTH,
    SIZES,
    Architecture,
    ConfigReader,
    Row,
    Specs,
    TensorMapping,
    map_rows,
    read_sizes,
    write_sizes,
)
from suffice.models.architectures.decoders import MLP_ROWS, NORMS, QKV, QKV_ROWS, block_rows
from suffice.models.architectures.encoders import label_entries, read_num_classes
from suffice.models.architectures.layer_types import LAYER_TYPES, read_layer_types
from suffice.models.architectures.rope import read_rope, read_ropes, rope_parameters, rotary_of
from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.patterns import Full, Window
from suffice.positions import Rope
from suffice.spec import AttentionSpec

MODERN_SIZES = SIZES | {LENGTH: "length"}
GATES = {"gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh"}
GATES |= {"silu": "swiglu"}
GATE_NAMES = {ours: theirs for theirs, ours in reversed(GATES.items())}
POOLINGS = {"cls": "first", "mean": "mean"}
EURO_POOLINGS = {"late": "late", "mean": "mean", "bos": "first"}
EMBEDDING = "model.embeddings.tok_embeddings"
HEADS = {
    "Model": "",
    "ForMaskedLM": "decoder",
    "ForSequenceClassification": "classifier",
    "ForTokenClassification": "classifier",
}
"""The last map of a class of ModernBERT."""


def _read_outputs(
    reader: ConfigReader, name: str, vocabulary_size: int, poolings: dict[str, str]
) -> dict[str, Any]:
    if name == "Model":
        return {"num_classes": None, "pooling": reader.one_of("pooling", "mean", "first")}
    if name == "ForMaskedLM":
        return {"num_classes": vocabulary_size, "pooling": "none"}
    pooling = "none"
    if name == "ForSequenceClassification":
        pooling = poolings[reader.one_of("classifier_pooling", *poolings)]
    return {"num_classes": read_num_classes(reader), "pooling": pooling}


def _read_modernbert(reader: ConfigReader, *, name: str) -> tuple[ClassifierConfig, Specs]:
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    sizes = read_sizes(reader, MODERN_SIZES)
    config = ClassifierConfig(
        **sizes,
        **_read_outputs(reader, name, sizes["vocabulary_size"], POOLINGS),
        head_widths=() if name == "Model" else (width,),
        norm="pre",
        eps=reader.number("norm_eps", 1e-5),
        activation=GATES[reader.one_of("hidden_activation", *GATES)],
        positions="none",
        embedding_norm=True,
        head_activation=ACTIVATIONS[reader.one_of("classifier_activation", "gelu", *ACTIVATIONS)],
        head_norm=True,
        bias=reader.flag("mlp_bias") or reader.flag("norm_bias"),
        first_norm=False,
        final_norm=True,
    )
    spec = AttentionSpec(d_model=width, num_heads=heads, bias=reader.flag("attention_bias"))
    ropes = read_ropes(
        reader,
        spec.head_width,
        {"rope_theta": reader.number("global_rope_theta", 160_000.0)},
        {"rope_theta": reader.number("local_rope_theta", 10_000.0)},
    )
    window = Window(reader.size("local_attention", 128) // 2 + 1)
    by_type = {
        kind: replace(spec, pattern=pattern, position=rope)
        for kind, pattern, rope in zip(LAYER_TYPES, (Full(), window), ropes, strict=True)
    }
    every = reader.size("global_attn_every_n_layers", 3)
    usual = [bool(number % every) for number in range(config.depth)]
    return config, [by_type[kind] for kind in read_layer_types(reader, LAYER_TYPES, usual)]


def _write_modernbert(model: Classifier) -> dict[str, Any]:
    config, specs = model.config, model.specs
    bands = [spec.pattern.band() for spec in specs]
    reaches = [None if band is None else band.before for band in bands]
    types = [LAYER_TYPES[reach is not None] for reach in reaches]
    ropes = {kind: Rope() for kind in LAYER_TYPES}
    ropes |= {kind: rotary_of(spec) or Rope() for kind, spec in zip(types, specs, strict=True)}
    poolings = {ours: theirs for theirs, ours in POOLINGS.items()}
    labels = {} if config.num_classes == config.vocabulary_size else label_entries(model)
    return write_sizes(config, MODERN_SIZES) | labels | {
        "num_attention_heads": specs[0].num_heads,
        "hidden_activation": GATE_NAMES.get(config.activation),
        "norm_eps": config.eps,
        "norm_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_bias": any(spec.bias for spec in specs),
        "local_attention": max(1, 2 * next((r for r in reaches if r is not None), 64)),
        "layer_types": types,
        "rope_parameters": {
            kind: rope_parameters(rope, specs[0].head_width, config.length)
            for kind, rope in ropes.items()
        },
        "classifier_pooling": poolings.get(config.pooling, "cls"),
        "classifier_activation": ACTIVATION_NAMES.get(config.head_activation),
        "classifier_bias": True,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }  # fmt: skip


def _map_modernbert(model: Classifier, reader: ConfigReader, *, name: str) -> list[TensorMapping]:
    rows: list[Row] = [
        (EMBEDDING, "tokens"),
        ("model.embeddings.norm", "embedding_norm"),
        ("model.layers.*.attn.Wqkv", QKV),
        ("model.layers.*.mlp.Wi", ("blocks.*.mlp.gate", "blocks.*.mlp.up")),
        *block_rows(
            "model.layers.*",
            "blocks.*",
            "attn_norm:attention_norm attn.Wo:attention.o_proj mlp_norm:mlp_norm mlp.Wo:mlp.down",
        ),
        ("model.final_norm", "norm"),
        ("head.dense", "head.0"),
        ("head.norm", "head.2"),
        (HEADS[name], "head.4"),
    ]
    masked = name == "ForMaskedLM"
    tied = masked and reader.flag("tie_word_embeddings", default=True)
    biased = {
        ("norm", "head.2"): reader.flag("norm_bias"),
        ("mlp.gate", "mlp.down"): reader.flag("mlp_bias"),
        ("head.0",): reader.flag("classifier_bias"),
        ("head.4",): not masked or reader.flag("decoder_bias", default=True),
    }
    lacking = tuple(one for names, bias in biased.items() if not bias for one in names)
    mappings = map_rows(rows, model, without_bias=lacking)
    return _tie(mappings, "decoder", EMBEDDING) if tied else mappings


def _tie(mappings: list[TensorMapping], head: str, embedding: str) -> list[TensorMapping]:
    """Return the mappings with the embedding's tensor in the place of the head's."""
    names = {f"{head}.weight": f"{embedding}.weight"}
    return [replace(one, theirs=names.get(one.theirs, one.theirs)) for one in mappings]


MODERNBERTS = tuple(
    Architecture(
        model_type="modernbert",
        class_name=f"ModernBert{name}",
        ties=True,
        sizes=partial(_read_modernbert, name=name),
        entries=_write_modernbert,
        model=Classifier,
        mappings=partial(_map_modernbert, name=name),
        head="decoder.weight",
        prefix="model.",
    )
    for name in HEADS
)


def _read_eurobert(reader: ConfigReader, *, name: str) -> tuple[ClassifierConfig, Specs]:
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    sizes = read_sizes(reader, MODERN_SIZES)
    config = ClassifierConfig(
        **sizes,
        **_read_outputs(reader, name, sizes["vocabulary_size"], EURO_POOLINGS),
        head_widths=(width,) if name == "ForSequenceClassification" else (),
        norm="pre",
        eps=reader.number("rms_norm_eps", 1e-5),
        activation=GATES[reader.one_of("hidden_act", "silu", *GATES)],
        positions="none",
        head_activation="gelu",
        normalisation="rms",
        bias=reader.flag("mlp_bias"),
        final_norm=True,
    )
    head_dim = reader.size("head_dim", width // heads)
    return config, AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=reader.size("num_key_value_heads", heads),
        head_dim=None if head_dim * heads == width else head_dim,
        position=read_rope(reader, head_dim, share=None),
        bias=reader.flag("attention_bias"),
    )


def _map_eurobert(model: Classifier, reader: ConfigReader, *, name: str) -> list[TensorMapping]:
    masked = name == "ForMaskedLM"
    last = "head.3" if name == "ForSequenceClassification" else "head.0"
    rows: list[Row] = [
        ("model.embed_tokens", "tokens"),
        ("model.norm", "norm"),
        *block_rows("model.layers.*", "blocks.*", NORMS["pre"]),
        *QKV_ROWS,
        ("model.layers.*.self_attn.o_proj", "blocks.*.attention.o_proj"),
        *MLP_ROWS,
        *([("dense", "head.0")] if last == "head.3" else []),
        ("lm_head" if masked else "classifier", last),
    ]
    lacking = (last,) if masked and not reader.flag("mlp_bias") else ()
    mappings = map_rows(rows, model, without_bias=lacking)
    tied = masked and reader.flag("tie_word_embeddings")
    return _tie(mappings, "lm_head", "model.embed_tokens") if tied else mappings


EUROBERTS = tuple(
    Architecture(
        model_type="eurobert",
        class_name=f"EuroBert{name}",
        sizes=partial(_read_eurobert, name=name),
        model=Classifier,
        mappings=partial(_map_eurobert, name=name),
        prefix="model.",
    )
    for name in HEADS
)
