"""Classifiers that start from a pretrained encoder of transformers, with its or other attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.models.architectures.architecture import Architecture, ConfigReader, our_state
from suffice.models.architectures.encoders import BERTS
from suffice.models.architectures.hugging_face import (
    architecture_of,
    read_config,
    read_pooling,
    with_prefix,
)
from suffice.models.architectures.modern import EUROBERTS, MODERNBERTS
from suffice.models.architectures.weights import load_tensors
from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.patterns import Full
from suffice.spec import AttentionSpec

ENCODERS = (*BERTS, *MODERNBERTS, *EUROBERTS)


def classifier_of(folder: Path) -> tuple[ClassifierConfig, list[AttentionSpec]]:
    """Return sizes and attention of transformers' classifier of one class on a folder's encoder.

    A folder of sentence-transformers keeps its pooling, from which one map leads to the classes.
    """
    architecture, reader = _architecture(folder)
    sizes, specs = architecture.sizes(reader)
    each = [specs] * sizes.depth if isinstance(specs, AttentionSpec) else [*specs]
    return replace(sizes, num_classes=1), each


def _architecture(folder: Path) -> tuple[Architecture, ConfigReader]:
    # whatever head was stored: the body is the same
    entries = read_config(folder) | {"num_labels": 1, "id2label": None, "architectures": None}
    pooling = read_pooling(folder)
    stored, reader = architecture_of(entries | pooling, folder)
    end = "Model" if pooling else "ForSequenceClassification"
    for one in ENCODERS:
        if one.model_type == stored.model_type and one.class_name.endswith(end):
            return one, reader
    kinds = ", ".join(dict.fromkeys(one.model_type for one in ENCODERS))
    raise ConfigError(f"{folder} holds a {stored.class_name}, no encoder; start from: {kinds}.")


def changed_specs(
    folder: Path,
    sizes: Any,
    changed: Sequence[AttentionSpec],
    standard: Sequence[AttentionSpec],
) -> list[AttentionSpec]:
    """Return an encoder's attention with what distinguishes a mechanism from the standard one.

    Layers with a window keep all but the pattern, which may become narrower. Fewer key/value heads
    begin as means of the encoder's.
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
    ours, theirs = states
    for name in sorted(ours.keys() | theirs.keys()):
        pair = ours.get(name), theirs.get(name)
        if None in pair or not _fits(name, *(one.shape for one in pair)):
            raise ConfigError(
                f"{name} is not as in {folder}; name mechanisms that keep its weights, such as "
                "standard+window:32, standard+kv:1 or linear."
            )
    return specs


SHARED = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")  # rows of K/V heads


def _fits(name: str, ours: torch.Size, theirs: torch.Size) -> bool:
    fewer = name.endswith(SHARED) and ours[1:] == theirs[1:] and theirs[0] % ours[0] == 0
    return ours == theirs or fewer


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
    architecture, reader = _architecture(folder)
    tensors = with_prefix(architecture, load_tensors(folder))
    source = architecture.build(reader)  # on "meta", of the encoder's own length
    last = f"head.{len(model.head) - 1}."
    mappings = [
        one
        for one in architecture.mappings(source, reader)
        if not one.ours[0].startswith(last)
        and (one.theirs in tensors or not one.theirs or not one.ours[0].startswith("head."))
    ]
    wanted = {one.theirs for one in mappings}
    body = {n: t for n, t in tensors.items() if n in wanted or n.startswith(architecture.prefix)}
    state = our_state(mappings, body, source, folder)
    if model.positions is not None:
        state["positions.weight"] = state["positions.weight"][: model.config.length]
    drawn = model.state_dict()
    state = {name: _averaged(own, drawn[name], source.specs[0]) for name, own in state.items()}
    model.load_state_dict(drawn | state)


def _averaged(own: Tensor, wanted: Tensor, spec: AttentionSpec) -> Tensor:
    """Return rows of key/value heads as means over those that share one from now on."""
    if own.shape == wanted.shape:
        return own
    groups = len(own) // len(wanted)
    return own.unflatten(0, (-1, groups, spec.head_width)).mean(1).flatten(0, 1)
