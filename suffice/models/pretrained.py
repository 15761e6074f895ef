"""Classifiers that start from a pretrained encoder of transformers, with its or other attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.models.architectures.hugging_face import architecture_of, read, read_config
from suffice.models.architectures.modern import EUROBERTS, MODERNBERTS
from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.patterns import Full
from suffice.spec import AttentionSpec


def classifier_of(folder: Path) -> tuple[ClassifierConfig, list[AttentionSpec]]:
    """Return the sizes and the attention of a classifier of one class on a folder's encoder.

    Raises:
        CheckpointError: if the folder holds no model of transformers that is read.
        ConfigError: if the model is not a ModernBERT or EuroBERT.
    """
    entries = read_config(folder) | {"num_labels": 1, "id2label": None}
    stored, reader = architecture_of(entries, folder)
    for one in (*MODERNBERTS, *EUROBERTS):
        if one.model_type == stored.model_type and "ForSequenceClassification" in one.class_name:
            sizes, specs = one.sizes(reader)
            return sizes, [specs] * sizes.depth if isinstance(specs, AttentionSpec) else [*specs]
    raise ConfigError(f"{folder} holds a {stored.class_name}; give a ModernBERT or a EuroBERT.")


def changed_specs(
    folder: Path,
    sizes: Any,
    changed: Sequence[AttentionSpec],
    standard: Sequence[AttentionSpec],
) -> list[AttentionSpec]:
    """Return an encoder's attention with what tells a mechanism's from the standard one.

    Layers with a window keep all but the pattern, which may become narrower.

    Raises:
        ConfigError: for other sizes than the encoder's, or a mechanism with other weights.
    """
    limits, own = classifier_of(folder)
    if sizes.length > limits.length or standard[0].num_heads != own[0].num_heads:
        raise ConfigError(
            f"length={sizes.length} and {standard[0].num_heads} heads: {folder} reads up to "
            f"{limits.length:,} tokens by {own[0].num_heads} heads; give these."
        )
    specs = [_changed(*layers) for layers in zip(own, changed, standard, strict=True)]
    with torch.device("meta"):
        states = [sizes.build(each).state_dict() for each in (specs, own)]
    ours, theirs = ({(name, tensor.shape) for name, tensor in one.items()} for one in states)
    if other := sorted(ours ^ theirs):
        raise ConfigError(
            f"{other[0][0]} is not as in {folder}; name mechanisms that keep its weights, such as "
            "standard+window:32 or linear."
        )
    return specs


def _changed(own: AttentionSpec, changed: AttentionSpec, standard: AttentionSpec) -> AttentionSpec:
    new, old = (
        {f.name: getattr(spec, f.name) for f in fields(own)} for spec in (changed, standard)
    )
    values: dict[str, Any] = {name: value for name, value in new.items() if value != old[name]}
    if type(own.pattern) is not Full:
        values = {"pattern": own.pattern & values["pattern"]} if "pattern" in values else {}
    return replace(own, **values)


def load_encoder(model: Classifier, folder: Path) -> None:
    """Copy an encoder's weights; the map to the classes, and what it lacks, stays as drawn."""
    source = read(folder, read_config(folder))
    last = f"head.{len(source.head) - 1}." if isinstance(source.head, nn.Sequential) else "head."
    state = {n: t for n, t in source.state_dict().items() if not n.startswith(last)}
    model.load_state_dict(model.state_dict() | state)
