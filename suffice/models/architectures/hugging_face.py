"""Reads and writes checkpoints of transformers, a config.json and safetensors, without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError
from suffice.models.architectures.architecture import (
    Architecture,
    ConfigReader,
    our_state,
    their_tensors,
)
from suffice.models.architectures.decoders import GPT2, LLAMAS
from suffice.models.architectures.deepseek import DEEPSEEK_V3
from suffice.models.architectures.encoders import BERTS, VITS
from suffice.models.architectures.hybrids import HYBRIDS
from suffice.models.architectures.modern import EUROBERTS, MODERNBERTS
from suffice.models.architectures.weights import load_tensors, read_json

CONFIG = "config.json"
POOLING = "1_Pooling/config.json"  # of sentence-transformers
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
TENSORFLOW = {"gamma": "weight", "beta": "bias"}  # of norms in the oldest files of BERT
READ: tuple[Architecture, ...] = (
    *(GPT2, *LLAMAS, DEEPSEEK_V3, *HYBRIDS),
    *BERTS,
    *MODERNBERTS,
    *EUROBERTS,
    *VITS,
)
"""Every architecture that is read."""
ARCHITECTURES: dict[str, Architecture] = {one.model_type: one for one in reversed(READ)}
"""The first architecture of each model_type: the one of a config.json that names no class."""


def read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        # a tokenizer and weights of torch are not models of llama2.c
        files = [p for p in folder.glob("*.bin") if not p.name.startswith(("tok", "pytorch_model"))]
        hint = f", or the file of llama2.c itself: {files[0]}" if len(files) == 1 else ""
        raise CheckpointError(
            f"{folder} holds no {CONFIG}; give a folder of suffice, or of a model of transformers"
            f"{hint}."
        )
    return read_json(folder / CONFIG)


def read(folder: Path, config: dict[str, Any]) -> nn.Module:
    """Return the model of a folder with Standard attention, in evaluation and float32."""
    architecture, reader = architecture_of(config | read_pooling(folder), folder)
    try:
        model = architecture.build(reader)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch's, of sizes that overflow
        raise CheckpointError(
            f"{folder}: these sizes are invalid ({str(error).partition(chr(10))[0]:.200})."
        ) from error
    mappings = architecture.mappings(model, reader)
    tensors = with_prefix(architecture, load_tensors(folder))
    if architecture.drafts:
        tensors = _without_drafts(architecture, reader, model, tensors)
    name = architecture.head
    if name in tensors and not any(one.theirs == name for one in mappings):
        head, embedding = tensors.pop(name), mappings[0].theirs
        if embedding in tensors and not torch.equal(head, tensors[embedding]):
            raise CheckpointError(
                f"{folder}: config.json ties the head to the embedding and their weights differ; "
                "set tie_word_embeddings to what is true."
            )
    model.load_state_dict(our_state(mappings, tensors, model, folder), assign=True)
    return model.requires_grad_(True).eval()


def read_pooling(folder: Path) -> dict[str, str]:
    """Return how a folder of sentence-transformers makes one vector of a text; {} in others."""
    path = folder / POOLING
    if not path.is_file():
        return {}
    modes = {n for n, value in read_json(path).items() if n in POOLINGS and value is True}
    if len(modes) != 1:
        raise CheckpointError(
            f"{path} asks for {' and '.join(sorted(modes)) or 'no known pooling'}; one of "
            f"{' or '.join(POOLINGS)} is read."
        )
    return {"pooling": POOLINGS[modes.pop()]}


def tensors_for(model: nn.Module, config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a model of a config.json under their names in transformers."""
    architecture, reader = architecture_of(config, CONFIG)
    state = model.state_dict()
    expected = architecture.build(reader).state_dict()
    if {n: t.shape for n, t in expected.items()} != {n: t.shape for n, t in state.items()}:
        raise ConfigError(
            f"the model is not the {architecture.model_type} of this configuration: its tensors "
            "differ in names or shapes; convert it to that first."
        )
    return their_tensors(architecture.mappings(model, reader), state)


def architecture_of(config: dict[str, Any], where: object) -> tuple[Architecture, ConfigReader]:
    """Return the architecture that a config.json names, and a reader of its entries."""
    kind = config.get("model_type")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(
            f"{where}: its weights are quantised ({method!r:.40}), which is not read; load them "
            "dequantised in transformers, save that, and give the folder."
        )
    if "suffice_" in (pattern := str(config.get("attn_implementation"))):
        raise CheckpointError(
            f"{where}: its weights were trained with the pattern {pattern:.60}, which the file "
            "does not hold; register it and load the model in transformers."
        )
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{where}: the architecture {kind!r:.60} is not read; legal: "
            f"{', '.join(sorted(ARCHITECTURES))}."
        )
    reader, classes = ConfigReader(config, where), config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError(f"{where}: architectures={classes!r:.60} is not a list of names.")
    if not classes:
        return ARCHITECTURES[kind], reader
    legal = {one.class_name: one for one in READ if one.model_type == kind}
    for one in list(legal.values()):
        if one.bare_name and reader.flag("tie_word_embeddings", default=one.ties):
            legal[one.bare_name] = one
    for name in classes:
        if name in legal:
            return legal[name], reader
    raise CheckpointError(
        f"{where} holds a {classes[0]:.60}; of {kind} only {' or '.join(legal)} is read."
    )


def _without_drafts(
    architecture: Architecture, reader: ConfigReader, model: Any, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Leave out the blocks behind the last, which draft further tokens and change no logit."""
    count, depth = reader.entries.get(architecture.drafts), len(model.blocks)
    numbers = range(depth, depth + count) if isinstance(count, int) else ()
    left_out = tuple(f"{architecture.prefix}layers.{number}." for number in numbers)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}


def with_prefix(architecture: Architecture, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out derived tensors, and add the prefix where the model was saved without its head."""
    derived, prefix, head = architecture.derived, architecture.prefix, architecture.head
    tensors = {
        re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: TENSORFLOW[old[0]], n): tensor
        for n, tensor in tensors.items()
        if not n.endswith(derived or ("\0",))
    }
    if nested := architecture.nested:
        tensors = {
            f"{prefix}{n.removeprefix(nested)}" if n.startswith(nested) else n: tensor
            for n, tensor in tensors.items()
        }
    if not prefix or any(name.startswith(prefix) for name in tensors):
        return tensors
    return {n if n == head else f"{prefix}{n}": tensor for n, tensor in tensors.items()}
