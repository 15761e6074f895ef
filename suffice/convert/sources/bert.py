"""BERT with a head that classifies."""

from __future__ import annotations

from torch import nn

from suffice.convert.sources.family import Family, linear, norm
from suffice.convert.sources.given import Given
from suffice.convert.sources.gpt2 import ACTIVATIONS
from suffice.convert.sources.parts import Part
from suffice.errors import ConfigError
from suffice.models.classifier import Classifier, ClassifierConfig
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
